// Built patterns by key.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/core/mutex.h"
#include "kernels/pattern/source.h"

namespace attnd {

// The host memory of a pattern.
int64_t BytesOf(const Pattern& pattern);

// Patterns by key, bounded in bytes: the least recently used leaves first. Thread safe; patterns
// are built outside the lock.
class PatternCache {
 public:
  explicit PatternCache(int64_t max_bytes = int64_t{64} << 20);
  ~PatternCache();
  std::shared_ptr<const Pattern> Get(const PatternSource& source);

 private:
  struct Impl;
  const int64_t max_bytes_;
  Mutex mu_;
  std::unique_ptr<Impl> impl_;  // guarded by mu_
};

// Bytes of the patterns in all caches of this process, keys included. Thread safe.
int64_t CachedPatternBytes();

}  // namespace attnd
