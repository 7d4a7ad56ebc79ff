// The order of one stream's work on a CUDA device, and how far it has come.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/cuda/staging.h"
#include "kernels/device/memory.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

// An event that ends with its last owner.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }  // null: the driver gave none

 private:
  cudaEvent_t event_ = nullptr;
};

// A stream of the driver with its staging memory. Creating one takes milliseconds, so that a device
// keeps those that are not in use.
struct QueueResources {
  int device = 0;
  cudaStream_t stream = nullptr;
  std::unique_ptr<Staging> staging;

  // Null: the driver gives no stream. `copied`: as Staging's.
  static std::unique_ptr<QueueResources> New(int device, CopiedBytes* copied);
  ~QueueResources();
};

// Events stand in the stream only where a thread asks for them: a position has passed when an event
// behind it has. Thread safe.
class CudaProgress final : public WorkProgress {
 public:
  CudaProgress(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  int64_t position() const override;
  bool HasPassed(int64_t position) const override;
  bool WaitFor(int64_t position) override;

  // One more piece of work is in the stream, of so many seconds by prediction. Returns when few
  // enough milliseconds of work are left in it: what is asked for later can be stopped until then.
  void Add(double seconds);
  // Everything has been done, or the device has failed.
  void PassAll(cudaError_t error);
  void End();  // the stream ends: no more events
  cudaError_t error() const;

 private:
  struct Marker {
    int64_t position;
    std::shared_ptr<Event> event;
  };
  void Poll() const ATTND_REQUIRES(mu_);
  // An event at or behind `position`; null: it has passed (IsPast), or there is no memory for one.
  std::shared_ptr<Event> MarkerAt(int64_t position) const ATTND_REQUIRES(mu_);
  bool IsPast(int64_t position) const ATTND_REQUIRES(mu_);
  // Of the whole stream. A device that has failed ends it at once: nothing runs any more.
  void AllPassed(cudaError_t state) const ATTND_REQUIRES(mu_);
  void WaitWithoutEvent(int64_t position) ATTND_REQUIRES(mu_);

  const int device_;
  const cudaStream_t stream_;
  mutable Mutex mu_;
  int64_t position_ ATTND_GUARDED_BY(mu_) = 0;
  mutable int64_t passed_ ATTND_GUARDED_BY(mu_) = 0;
  mutable cudaError_t error_ ATTND_GUARDED_BY(mu_) = cudaSuccess;
  mutable std::deque<Marker> markers_ ATTND_GUARDED_BY(mu_);
  // Work behind the last throttle, and throttles that may not have passed.
  double seconds_ ATTND_GUARDED_BY(mu_) = 0;
  int64_t pieces_ ATTND_GUARDED_BY(mu_) = 0;
  std::deque<std::shared_ptr<Event>> throttles_ ATTND_GUARDED_BY(mu_);
  bool has_ended_ ATTND_GUARDED_BY(mu_) = false;
};

class CudaDevice;

class CudaQueue final : public WorkQueue {
 public:
  // `device` gets the resources back. REQUIRES: it outlives the queue.
  CudaQueue(CudaDevice* device, std::unique_ptr<QueueResources> resources);
  ~CudaQueue() override;

  std::shared_ptr<WorkProgress> progress() const override { return progress_; }
  DeviceStatus Wait() override;

  cudaStream_t stream() const { return resources_->stream; }
  CudaProgress& cuda_progress() { return *progress_; }
  Staging& staging() { return *resources_->staging; }
  // Keeps what the work uses that the queue has been asked for so far until that has passed, or
  // somewhat longer. For the thread of the stream.
  void Hold(std::shared_ptr<const void> what);

 private:
  struct Held {
    int64_t position;
    std::shared_ptr<const void> what;
  };
  CudaDevice* const device_;
  std::unique_ptr<QueueResources> resources_;
  const std::shared_ptr<CudaProgress> progress_;
  std::deque<Held> held_;  // by position
};

// REQUIRES: the stream is one of a CUDA device, and not dry.
inline CudaQueue& QueueOf(Stream& stream) { return static_cast<CudaQueue&>(*stream.queue()); }

}  // namespace attnd::cuda
