// Device memory: a pool of reusable buffers, and the workspace that counts what a batch takes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/core/mutex.h"
#include "kernels/device/status.h"

namespace attnd {

// The bytes that a request for `bytes` really takes: rounded up to a size class, at most 1/8 more
// (64 at least). Dry runs and real runs count with the same function, so a plan bounds the run.
int64_t RoundedBytes(int64_t bytes);

class BufferPool;

// The order in which a device does what one stream asks of it, for devices that work later than
// they are asked to. Thread safe.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  // Of the last thing that was asked; rises with each.
  virtual int64_t position() const = 0;
  // Whether everything up to `position` has been done.
  virtual bool HasPassed(int64_t position) const = 0;
  // Until everything that was asked has been done. The first failure since the last Wait.
  virtual DeviceStatus Wait() = 0;
};

// Memory as the system or the driver of a device hands it out. Thread safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Aligned to 64 bytes; null when there is none left.
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
  // Sets every byte, in the order of `queue` (null: at once).
  virtual void Fill(WorkQueue* queue, void* data, int64_t bytes, uint8_t value) = 0;
};

// Of the host; blocks from 4 MiB on start at a huge page.
std::unique_ptr<MemorySource> NewHostMemory();

// A block of memory aligned to 64 bytes. Returns to its pool when destroyed, on any thread; what
// its queue was asked to do before still finds it.
class Buffer {
 public:
  Buffer(BufferPool* pool, void* data, int64_t bytes, std::shared_ptr<WorkQueue> queue)
      : pool_(pool), data_(data), bytes_(bytes), queue_(std::move(queue)) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  BufferPool* const pool_;
  void* const data_;
  const int64_t bytes_;
  const std::shared_ptr<WorkQueue> queue_;
};

struct PoolStats {
  int64_t used_bytes = 0;      // in buffers that are alive
  int64_t reserved_bytes = 0;  // used + kept for reuse
  int64_t peak_bytes = 0;      // highest used_bytes so far
  int64_t allocations = 0;     // buffers handed out so far
};

// The memory of one device in size classes. Thread safe. Freed buffers are kept for reuse up to
// `retain_bytes`, beyond that they go back to the source once their queue is done with them. Until
// then only that queue gets them again. Outlives every buffer it handed out.
// Contents are not cleared; with `poison` every byte of a handed out buffer is 0xFF (NaN in every
// float type), so that a test sees whoever reads what nobody wrote.
class BufferPool {
 public:
  explicit BufferPool(int64_t retain_bytes = int64_t{256} << 20, bool poison = false,
                      std::unique_ptr<MemorySource> source = NewHostMemory());
  ~BufferPool();

  // For use in the order of `queue` only, if there is one. Null when there is no memory left.
  // `bytes` may be 0.
  std::shared_ptr<Buffer> Allocate(int64_t bytes, std::shared_ptr<WorkQueue> queue = nullptr);
  PoolStats stats() const;
  int64_t retain_bytes() const { return retain_bytes_; }

 private:
  friend class Buffer;
  void Release(void* data, int64_t bytes, const std::shared_ptr<WorkQueue>& queue);

  const int64_t retain_bytes_;
  const bool poison_;
  const std::unique_ptr<MemorySource> source_;
  mutable Mutex mu_;
  struct Impl;
  const std::unique_ptr<Impl> impl_;  // guarded by mu_
};

// Counts the bytes that are alive between Reset and now, and their peak. Not thread safe: it
// belongs to one stream. In a dry run (no pool) it counts and hands out buffers without memory.
class Workspace {
 public:
  explicit Workspace(BufferPool* pool, std::shared_ptr<WorkQueue> queue = nullptr);
  ~Workspace();

  // Null when there is no memory. The bytes stop counting when the last reference is dropped.
  std::shared_ptr<Buffer> Allocate(int64_t bytes);
  // Of the last Allocate that gave null.
  int64_t refused_bytes() const { return refused_bytes_; }
  bool is_dry() const { return pool_ == nullptr; }
  int64_t current_bytes() const;
  int64_t peak_bytes() const;
  void Reset();  // forgets the peak; buffers still alive keep living but no longer count

 private:
  struct Count;  // shared with the buffers handed out, which may outlive the workspace
  BufferPool* const pool_;
  const std::shared_ptr<WorkQueue> queue_;
  std::shared_ptr<Count> count_;
  int64_t refused_bytes_ = 0;
};

}  // namespace attnd
