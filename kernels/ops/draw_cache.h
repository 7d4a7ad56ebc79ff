// Drawn tables by what they are drawn from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/core/random_table.h"

namespace attnd {

// Tables for the next request of the same seed, bounded in bytes: the least recently used leaves
// first. Thread safe; tables are drawn outside the lock, so two threads that need the same new one
// at once both draw it.
class DrawCache {
 public:
  using Table = std::shared_ptr<const std::vector<float>>;

  // Two of the largest tables that a request may have drawn, and what is kept beside their values.
  static constexpr int64_t kBytes =
      2 * kMostDrawn * static_cast<int64_t>(sizeof(float)) + (int64_t{1} << 20);

  explicit DrawCache(int64_t max_bytes = kBytes);
  ~DrawCache();
  // Null: the run of this thread has been stopped (CheckPoint), and nothing is kept.
  Table Get(const DrawParams& params, const Shape& shape);

 private:
  struct Impl;
  const int64_t max_bytes_;
  Mutex mu_;
  std::unique_ptr<Impl> impl_;  // guarded by mu_
};

// A table that is not kept. Null: the run of this thread has been stopped.
DrawCache::Table NewTable(const DrawParams& params, const Shape& shape);

// Bytes of the tables in all caches of this process, keys included. Thread safe.
int64_t CachedDrawBytes();

}  // namespace attnd
