#include "kernels/pattern/cache.h"

#include <atomic>
#include <list>
#include <unordered_map>

#include "kernels/core/run_control.h"

namespace attnd {
namespace {

std::atomic<int64_t> cached_bytes{0};

}  // namespace

int64_t BytesOf(const Pattern& pattern) {
  size_t bytes = sizeof(Pattern);
  for (const TileRows* rows : {&pattern.by_query, &pattern.by_key}) {
    bytes += rows->begin.capacity() * sizeof(int64_t) + rows->runs.capacity() * sizeof(Run);
  }
  for (const TileTerms& terms : pattern.terms) {
    bytes += sizeof(TileTerms) + terms.bias.capacity() * sizeof(float) +
             terms.labels.capacity() * sizeof(uint16_t);
  }
  bytes += pattern.masks.capacity() * sizeof(TileMask);
  if (pattern.computed_masks != nullptr) bytes += pattern.computed_masks->bytes();
  if (pattern.computed_terms != nullptr) bytes += pattern.computed_terms->bytes();
  bytes += (pattern.query_rows.capacity() + pattern.key_rows.capacity()) * sizeof(int32_t);
  bytes += pattern.key_bias.capacity() * sizeof(float);
  for (const PairList* list : {&pattern.keys_of, &pattern.queries_of}) {
    bytes += list->begin.capacity() * sizeof(int64_t) + list->columns.capacity() * sizeof(int32_t);
  }
  return static_cast<int64_t>(bytes);
}

struct PatternCache::Impl {
  struct Entry {
    std::string key;
    std::shared_ptr<const Pattern> pattern;
    int64_t bytes;
  };
  std::list<Entry> entries;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key;
  int64_t bytes = 0;

  std::shared_ptr<const Pattern> Find(const std::string& key) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) return nullptr;
    entries.splice(entries.begin(), entries, found->second);
    return found->second->pattern;
  }
};

PatternCache::PatternCache(int64_t max_bytes)
    : max_bytes_(max_bytes), impl_(std::make_unique<Impl>()) {}
PatternCache::~PatternCache() { cached_bytes.fetch_sub(impl_->bytes); }

int64_t CachedPatternBytes() { return cached_bytes.load(); }

std::shared_ptr<const Pattern> PatternCache::Get(const PatternSource& source) {
  {
    MutexLock lock(&mu_);
    if (auto found = impl_->Find(source.key)) return found;
  }
  auto built = std::make_shared<const Pattern>(source.build());
  if (CheckPoint()) return built;  // a stopped run has built only a part
  const int64_t bytes = BytesOf(*built) + static_cast<int64_t>(2 * source.key.size());
  // It would evict all others, then itself.
  if (bytes > max_bytes_) return built;
  std::list<Impl::Entry> out;  // freed after the lock is released
  MutexLock lock(&mu_);
  if (auto found = impl_->Find(source.key)) return found;  // another thread was faster
  impl_->entries.push_front({source.key, built, bytes});
  impl_->by_key[source.key] = impl_->entries.begin();
  impl_->bytes += bytes;
  cached_bytes.fetch_add(bytes);
  while (impl_->bytes > max_bytes_) {
    Impl::Entry& last = impl_->entries.back();
    impl_->bytes -= last.bytes;
    cached_bytes.fetch_sub(last.bytes);
    impl_->by_key.erase(last.key);
    out.splice(out.begin(), impl_->entries, std::prev(impl_->entries.end()));
  }
  return built;
}

}  // namespace attnd
