// Plans of calls that were planned before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "kernels/core/mutex.h"
#include "kernels/engine/engine.h"

namespace attnd {

// Clients send the same shapes again and again, and planning is a quarter of the work of a small
// request. Equal keys mean equal calls: keys are not hashed. Bounded: a plan that was not used
// during the last kMostPlans new plans is dropped. Thread safe.
class PlanCache {
 public:
  static constexpr size_t kMostPlans = 128;
  static constexpr size_t kMostKeyBytes = 1024;

  // Everything that the plan of the call on a device depends on, values that a plan reads included.
  // Empty: it would be longer than kMostKeyBytes; such calls are planned each time. Cost:
  // O(kMostKeyBytes).
  static std::string KeyOf(const Call& call, size_t device);

  // Null: there is none.
  std::shared_ptr<const Plan> Find(const std::string& key);
  // REQUIRES: the key is not empty.
  void Add(std::string key, std::shared_ptr<const Plan> plan);

 private:
  using Plans = std::unordered_map<std::string, std::shared_ptr<const Plan>>;

  void AddLocked(std::string key, std::shared_ptr<const Plan> plan) ATTND_REQUIRES(mu_);

  Mutex mu_;
  // The older ones are dropped when there are kMostPlans newer ones.
  Plans newer_ ATTND_GUARDED_BY(mu_), older_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
