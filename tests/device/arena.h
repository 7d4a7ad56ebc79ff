// Memory that may be touched only while it is open.
#pragma once

#include <sys/mman.h>

#include <cassert>
#include <cstdint>
#include <iterator>
#include <map>

#include "kernels/core/mutex.h"

namespace attnd::testing {

// A stretch of addresses. Thread safe.
class Arena {
 public:
  static constexpr int64_t kBytes = int64_t{16} << 30;
  static constexpr int64_t kPage = 4096;

  Arena()
      : begin_(static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1,
                                       /*offset=*/0))) {
    assert(begin_ != MAP_FAILED);
    free_[0] = kBytes;
  }
  ~Arena() { munmap(begin_, kBytes); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned to a page; null when there is no stretch that long.
  void* Allocate(int64_t bytes) {
    bytes = Pages(bytes);
    const MutexLock lock(&mu_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const auto [offset, size] = *it;
      free_.erase(it);
      if (size > bytes) free_[offset + bytes] = size - bytes;
      blocks_[offset] = bytes;
      return begin_ + offset;
    }
    return nullptr;
  }

  void Free(void* data, int64_t bytes) {
    bytes = Pages(bytes);
    madvise(data, bytes, MADV_DONTNEED);
    const MutexLock lock(&mu_);
    const int64_t offset = static_cast<char*>(data) - begin_;
    assert(blocks_.contains(offset));
    blocks_.erase(offset);
    auto it = free_.emplace(offset, bytes).first;
    const auto next = std::next(it);
    if (next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it == free_.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second != it->first) return;
    before->second += it->second;
    free_.erase(it);
  }

  // Whether `first` to `last` lie in one block that is not freed.
  bool Holds(const void* first, const void* last) {
    const int64_t begin = static_cast<const char*>(first) - begin_;
    const int64_t end = static_cast<const char*>(last) - begin_;
    const MutexLock lock(&mu_);
    auto block = blocks_.upper_bound(begin);
    if (block == blocks_.begin()) return false;
    --block;
    return begin <= end && end < block->first + block->second;
  }

  // Opens the memory for as long as it lives; scopes of several threads may overlap.
  class Scope {
   public:
    explicit Scope(Arena* arena) : arena_(arena) { arena_->Enter(+1); }
    ~Scope() { arena_->Enter(-1); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena* const arena_;
  };

 private:
  static int64_t Pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  void Enter(int change) {
    const MutexLock lock(&mu_);
    const int before = inside_;
    inside_ += change;
    if (before > 0 && inside_ > 0) return;
    mprotect(begin_, kBytes, inside_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

  char* const begin_;
  Mutex mu_;
  // Bytes by offset.
  std::map<int64_t, int64_t> free_ ATTND_GUARDED_BY(mu_), blocks_ ATTND_GUARDED_BY(mu_);
  int inside_ ATTND_GUARDED_BY(mu_) = 0;
};

}  // namespace attnd::testing
