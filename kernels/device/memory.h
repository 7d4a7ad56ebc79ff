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

// How far the work of one queue has come. It outlives the queue and holds none of its resources:
// once the queue has been destroyed, every position has passed. A position with its progress is an
// event, for which the owners of other streams may wait. Thread safe.
class WorkProgress {
 public:
  virtual ~WorkProgress() = default;
  // That of the last piece of work that was asked for; rises with each.
  virtual int64_t position() const = 0;
  // Whether all pieces up to `position` have been done or skipped.
  virtual bool HasPassed(int64_t position) const = 0;
  // Returns when HasPassed(position). False: the piece at `position` failed or was skipped. Leaves
  // the failure to WorkQueue::Wait.
  virtual bool WaitFor(int64_t position) = 0;
};

// What one stream asks of a device that works later than it is asked to: pieces of work that run in
// the order of asking. After a piece has failed, those asked for before the next Wait are skipped:
// they pass without being done. Thread safe.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;  // returns when every piece has passed
  // The same at every call, never null.
  virtual std::shared_ptr<WorkProgress> progress() const = 0;
  // Returns when every piece has passed: the first failure since the last Wait, which is cleared.
  // For the stream of this queue alone, which has to answer for the failure.
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

// A block of memory aligned to 64 bytes. Returns to its pool when destroyed, on any thread. Work
// that its queue was asked for earlier may still use it. It does not keep the queue alive.
class Buffer {
 public:
  // `progress`: of that queue; null: there is none.
  Buffer(BufferPool* pool, void* data, int64_t bytes, std::shared_ptr<WorkProgress> progress)
      : pool_(pool), data_(data), bytes_(bytes), progress_(std::move(progress)) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  BufferPool* const pool_;
  void* const data_;
  const int64_t bytes_;
  const std::shared_ptr<WorkProgress> progress_;
};

struct PoolStats {
  int64_t used_bytes = 0;      // in buffers that are alive
  int64_t reserved_bytes = 0;  // used + kept for reuse
  int64_t peak_bytes = 0;      // highest used_bytes so far
  int64_t allocations = 0;     // buffers handed out so far
};

// The memory of one device in size classes. Thread safe. Freed buffers are kept for reuse up to
// `retain_bytes`; those beyond go back to the source, the oldest first. A freed buffer whose queue
// has not passed its last use is always kept, and only that queue gets it again. Outlives every
// buffer it handed out.
// Contents are not cleared. With `poison` every byte of a handed out buffer is 0xFF (NaN in every
// float type), so that a test notices reads of memory that no one has written.
class BufferPool {
 public:
  explicit BufferPool(int64_t retain_bytes = int64_t{1} << 30, bool poison = false,
                      std::unique_ptr<MemorySource> source = NewHostMemory());
  ~BufferPool();

  // For use in the order of `queue` only, if there is one. Null when there is no memory left.
  // `bytes` may be 0.
  std::shared_ptr<Buffer> Allocate(int64_t bytes,
                                   const std::shared_ptr<WorkQueue>& queue = nullptr);
  // Of what is kept, gives back what lay unused since the last call, the oldest first, but no more
  // than what exceeds `least` bytes. The system clears each page that it hands out, which takes as
  // long as a pass over it: call this now and then, not after each piece of work.
  void Trim(int64_t least);
  PoolStats stats() const;
  int64_t retain_bytes() const { return retain_bytes_; }

 private:
  friend class Buffer;
  // Gives back the oldest free blocks until those that are kept take at most this.
  void Shed(int64_t most);
  void Release(void* data, int64_t bytes, const std::shared_ptr<WorkProgress>& progress);

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
  // One buffer for the problems of a list: `bytes` is the sum of what each of them needs, rounded
  // up to a multiple of 64. Counts 9/8 of it, which no size class exceeds, so that the counts of
  // single problems add up to that of their list.
  std::shared_ptr<Buffer> AllocateShared(int64_t bytes);
  // Counts memory of another owner, which has it from elsewhere, until the last reference is
  // dropped.
  std::shared_ptr<void> Count(int64_t bytes);
  // Of the last allocation that gave null.
  int64_t refused_bytes() const { return refused_bytes_; }
  bool is_dry() const { return pool_ == nullptr; }
  int64_t current_bytes() const;
  int64_t peak_bytes() const;
  void Reset();  // forgets the peak; buffers still alive keep living but no longer count

 private:
  struct Counter;  // shared with the buffers handed out, which may outlive the workspace
  struct Counted;
  std::shared_ptr<Buffer> AllocateCounted(int64_t bytes, int64_t counted);
  BufferPool* const pool_;
  const std::shared_ptr<WorkQueue> queue_;
  std::shared_ptr<Counter> counter_;
  int64_t refused_bytes_ = 0;
};

}  // namespace attnd
