// Plans of calls that were planned before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "kernels/core/mutex.h"
#include "kernels/engine/engine.h"

namespace attnd {

// Services are asked for the same shapes again and again, and of a small request the plan is a
// quarter of the work. Equal keys mean equal calls: no fingerprint can collide. Bounded: what was
// not asked for during the last kMostPlans new plans is forgotten. Thread safe.
class PlanCache {
 public:
  static constexpr size_t kMostPlans = 128;
  static constexpr size_t kMostKeyBytes = 1024;

  // All of the call that a plan follows from, values that a plan reads included. Empty: more than
  // kMostKeyBytes, such calls are planned each time. Cost: O(kMostKeyBytes).
  static std::string KeyOf(const Call& call);

  // Null: not known.
  std::shared_ptr<const Plan> Find(const std::string& key);
  // REQUIRES: the key is not empty.
  void Add(std::string key, std::shared_ptr<const Plan> plan);

 private:
  using Plans = std::unordered_map<std::string, std::shared_ptr<const Plan>>;

  void AddLocked(std::string key, std::shared_ptr<const Plan> plan) ATTND_REQUIRES(mu_);

  Mutex mu_;
  // The older ones go when the newer ones are kMostPlans.
  Plans newer_ ATTND_GUARDED_BY(mu_), older_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
