// Device memory: a pool of reusable buffers, and the workspace that counts what a batch takes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/mutex.h"

namespace attnd {

// The bytes that a request for `bytes` really takes: rounded up to a size class, at most 1/8 more
// (64 at least). Dry runs and real runs count with the same function, so a plan bounds the run.
int64_t RoundedBytes(int64_t bytes);

class BufferPool;

// A block of memory aligned to 64 bytes. Returns to its pool when destroyed, on any thread.
class Buffer {
 public:
  Buffer(BufferPool* pool, void* data, int64_t bytes) : pool_(pool), data_(data), bytes_(bytes) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  BufferPool* const pool_;
  void* const data_;
  const int64_t bytes_;
};

struct PoolStats {
  int64_t used_bytes = 0;      // in buffers that are alive
  int64_t reserved_bytes = 0;  // used + kept for reuse
  int64_t peak_bytes = 0;      // highest used_bytes so far
  int64_t allocations = 0;     // buffers handed out so far
};

// Host memory in size classes. Thread safe. Freed buffers are kept for reuse up to `retain_bytes`,
// beyond that they go back to the system. Outlives every buffer it handed out.
// Contents are not cleared; with `poison` every byte of a handed out buffer is 0xFF (NaN in every
// float type), so that a test sees whoever reads what nobody wrote.
class BufferPool {
 public:
  explicit BufferPool(int64_t retain_bytes = int64_t{256} << 20, bool poison = false);
  ~BufferPool();

  // Null when the system has no memory left. `bytes` may be 0.
  std::shared_ptr<Buffer> Allocate(int64_t bytes);
  PoolStats stats() const;

 private:
  friend class Buffer;
  void Release(void* data, int64_t bytes);

  const int64_t retain_bytes_;
  const bool poison_;
  mutable Mutex mu_;
  struct Impl;
  const std::unique_ptr<Impl> impl_;  // guarded by mu_
};

// Counts the bytes that are alive between Reset and now, and their peak. Not thread safe: it
// belongs to one stream. In a dry run (no pool) it counts and hands out buffers without memory.
class Workspace {
 public:
  explicit Workspace(BufferPool* pool);
  ~Workspace();

  // Null when there is no memory. The bytes stop counting when the last reference is dropped.
  std::shared_ptr<Buffer> Allocate(int64_t bytes);
  bool is_dry() const { return pool_ == nullptr; }
  int64_t current_bytes() const;
  int64_t peak_bytes() const;
  void Reset();  // forgets the peak; buffers still alive keep living but no longer count

 private:
  struct Count;  // shared with the buffers handed out, which may outlive the workspace
  BufferPool* const pool_;
  std::shared_ptr<Count> count_;
};

}  // namespace attnd
