#include "kernels/engine/plan_cache.h"

#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace attnd {
namespace {

// A length precedes everything of variable length, so that no two calls have the same bytes.
class Key {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void Add(T value) { Append({reinterpret_cast<const char*>(&value), sizeof(value)}); }
  void Add(absl::string_view text) {
    Add(text.size());
    Append(text);
  }
  void Add(const std::string& text) { Add(absl::string_view(text)); }
  void Add(const std::vector<int64_t>& values) {
    Add(values.size());
    Append({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)});
  }
  void Add(const std::vector<std::string>& texts) {
    Add(texts.size());
    for (const std::string& text : texts) Add(text);
  }

  void Add(const View& view, bool with_values) {
    Add(static_cast<uint8_t>(view.dtype));
    Add(static_cast<uint8_t>(view.layout));
    Add(static_cast<int8_t>(view.shape.rank));
    for (int i = 0; i < view.shape.rank; ++i) {
      Add(view.shape[i]);
      Add(view.stride[i]);
    }
    const bool is_read =
        with_values && view.data != nullptr && view.dtype == DType::kI32 && view.shape.rank == 1;
    Add(is_read);
    for (int64_t i = 0; is_read && fits_ && i < view.shape[0]; ++i) Add(IntAt(view, i));
  }

  std::string Take() && { return fits_ ? std::move(bytes_) : std::string(); }

 private:
  void Append(absl::string_view bytes) {
    fits_ = fits_ && bytes_.size() + bytes.size() <= PlanCache::kMostKeyBytes;
    if (fits_) bytes_.append(bytes.data(), bytes.size());
  }

  std::string bytes_;
  bool fits_ = true;
};

}  // namespace

std::string PlanCache::KeyOf(const Call& call, size_t device) {
  Key key;
  key.Add(call.method);
  key.Add(device);
  key.Add(static_cast<uint8_t>(call.direction));
  key.Add(call.is_deterministic);
  key.Add(call.tensors.size());
  for (const auto& [name, view] : call.tensors) {
    key.Add(name);
    key.Add(view, PlanReads(name));
  }
  for (const auto& [name, value] : call.options) {
    key.Add(name);
    key.Add(value.index());
    std::visit([&](const auto& held) { key.Add(held); }, value);
  }
  return std::move(key).Take();
}

std::shared_ptr<const Plan> PlanCache::Find(const std::string& key) {
  const MutexLock lock(&mu_);
  if (const auto found = newer_.find(key); found != newer_.end()) return found->second;
  const auto found = older_.find(key);
  if (found == older_.end()) return nullptr;
  std::shared_ptr<const Plan> plan = found->second;
  AddLocked(key, plan);
  return plan;
}

void PlanCache::Add(std::string key, std::shared_ptr<const Plan> plan) {
  const MutexLock lock(&mu_);
  AddLocked(std::move(key), std::move(plan));
}

void PlanCache::AddLocked(std::string key, std::shared_ptr<const Plan> plan) {
  if (newer_.size() >= kMostPlans) {
    older_ = std::move(newer_);
    newer_.clear();
  }
  newer_.emplace(std::move(key), std::move(plan));
}

}  // namespace attnd
