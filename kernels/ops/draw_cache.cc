#include "kernels/ops/draw_cache.h"

#include <atomic>
#include <bit>
#include <list>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

std::atomic<int64_t> cached_bytes{0};

// Name and suffix come last, after the size of the suffix, so that no two tables have the same
// key.
std::string KeyOf(const DrawParams& params, const Shape& shape) {
  std::string key = absl::StrCat(static_cast<int>(params.distribution), "/", params.seed, "/",
                                 static_cast<int>(params.norms), ToString(shape));
  for (double x : {params.low, params.high, params.deviation}) {
    absl::StrAppend(&key, "/", std::bit_cast<uint64_t>(x));
  }
  absl::StrAppend(&key, "/", params.suffix.size(), "/", params.name, params.suffix);
  return key;
}

}  // namespace

struct DrawCache::Impl {
  struct Entry {
    std::string key;
    Table table;
    int64_t bytes;
  };
  std::list<Entry> entries;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key;
  int64_t bytes = 0;

  Table Find(const std::string& key) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) return nullptr;
    entries.splice(entries.begin(), entries, found->second);
    return found->second->table;
  }
};

DrawCache::DrawCache(int64_t max_bytes) : max_bytes_(max_bytes), impl_(std::make_unique<Impl>()) {}
DrawCache::~DrawCache() { cached_bytes.fetch_sub(impl_->bytes); }

int64_t CachedDrawBytes() { return cached_bytes.load(); }

DrawCache::Table NewTable(const DrawParams& params, const Shape& shape) {
  auto table = std::make_shared<const std::vector<float>>(DrawTable(params, shape));
  if (CheckPoint()) return nullptr;  // a stopped run has drawn only a part
  return table;
}

DrawCache::Table DrawCache::Get(const DrawParams& params, const Shape& shape) {
  std::string key = KeyOf(params, shape);
  {
    const MutexLock lock(&mu_);
    if (Table found = impl_->Find(key)) return found;
  }
  Table drawn = NewTable(params, shape);
  if (drawn == nullptr) return nullptr;
  constexpr size_t kEntryBytes = 256;  // of the list, the map and the vector
  const auto bytes =
      static_cast<int64_t>(drawn->capacity() * sizeof(float) + 2 * key.capacity() + kEntryBytes);
  // It would evict all others, then itself.
  if (bytes > max_bytes_) return drawn;
  std::list<Impl::Entry> added, out;  // `out` is freed after the lock is released
  added.push_front({key, drawn, bytes});
  const MutexLock lock(&mu_);
  if (Table found = impl_->Find(key)) return found;  // another thread was faster
  impl_->by_key.emplace(std::move(key), added.begin());
  impl_->entries.splice(impl_->entries.begin(), added);
  impl_->bytes += bytes;
  cached_bytes.fetch_add(bytes);
  while (impl_->bytes > max_bytes_) {
    const Impl::Entry& last = impl_->entries.back();
    impl_->bytes -= last.bytes;
    cached_bytes.fetch_sub(last.bytes);
    impl_->by_key.erase(last.key);
    out.splice(out.begin(), impl_->entries, std::prev(impl_->entries.end()));
  }
  return drawn;
}

}  // namespace attnd
