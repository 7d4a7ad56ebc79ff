#include "streams.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <set>
#include <string_view>
#include <utility>

#include "device_memory.h"
#include "orders.h"

struct CUstream_st {
  std::shared_ptr<emu::Queue> queue;
};

namespace emu {
namespace {

// A point in a queue's work.
struct Point {
  std::shared_ptr<Queue> queue;
  int64_t position = 0;
  std::chrono::steady_clock::time_point time{};
};

// Handles that are valid.
template <class Handle>
class Handles {
 public:
  void Add(Handle handle) {
    const std::lock_guard lock(mu_);
    all_.insert(handle);
  }
  bool Remove(Handle handle) {
    const std::lock_guard lock(mu_);
    return all_.erase(handle) > 0;
  }
  bool Has(Handle handle) {
    const std::lock_guard lock(mu_);
    return all_.contains(handle);
  }

 private:
  std::mutex mu_;
  std::set<Handle> all_;
};

Handles<cudaStream_t>& Streams() {
  static auto& streams = *new Handles<cudaStream_t>;
  return streams;
}
Handles<cudaEvent_t>& Events() {
  static auto& events = *new Handles<cudaEvent_t>;
  return events;
}

}  // namespace

StreamOptions::StreamOptions() {
  const char* const text = std::getenv("EMULATED_CUDA_PACE");
  const std::string_view named = text == nullptr ? "late" : text;
  if (named == "at-once") pace = Pace::kAtOnce;
  if (named == "random") pace = Pace::kRandom;
}
StreamOptions stream_options;

int64_t Queue::Add(Work work) {
  int64_t position;
  {
    ++device_->pending;
    const std::lock_guard lock(mu_);
    works_.push_back(std::move(work));
    position = ++last_;
  }
  Advance();
  return position;
}

void Queue::Advance() {
  if (stream_options.pace == Pace::kLate) return;
  if (stream_options.pace == Pace::kAtOnce) return RunAll();
  thread_local std::minstd_rand random(static_cast<unsigned>(options.seed));
  int64_t done, last;
  {
    const std::lock_guard lock(mu_);
    done = done_, last = last_;
  }
  // Half of the time nothing, so that much is under way now and then.
  if (random() % 2 == 0) RunTo(done + static_cast<int64_t>(random()) % (last - done + 1));
}

int64_t Queue::last() {
  const std::lock_guard lock(mu_);
  return last_;
}

bool Queue::HasPassed(int64_t position) {
  Advance();
  const std::lock_guard lock(mu_);
  return done_ >= position;
}

void Queue::Run(const Work& work) {
  std::unique_lock turn(memory_turn, std::defer_lock);
  if (repeats > 0 && !work.waits) turn.lock();
  work.run();
}

void Queue::RunTo(int64_t position) {
  std::unique_lock lock(mu_);
  if (done_ >= position) return;
  const DeviceMemory::Scope open;
  while (done_ < position) {
    if (runs_) {
      changed_.wait(lock);
      continue;
    }
    Work work = std::move(works_.front());
    works_.pop_front();
    runs_ = true;
    lock.unlock();
    const bool is_lost = device_->error != cudaSuccess;
    if (work.fails && !is_lost) {
      device_->error = cudaErrorIllegalAddress;
    } else if (!is_lost || work.survives_loss) {
      Run(work);
    }
    work.run = nullptr;  // its destructor may take locks
    --device_->pending;
    lock.lock();
    runs_ = false;
    ++done_;
    changed_.notify_all();
  }
}

Queue* QueueFor(cudaStream_t stream, const char* what, cudaError_t* error) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    Misuse("%s on the null stream, which waits for the others", what);
  }
  *error = CheckDriver();
  if (*error != cudaSuccess) return nullptr;
  if (!Streams().Has(stream)) {
    *error = cudaErrorInvalidResourceHandle;
    return nullptr;
  }
  Queue* queue = stream->queue.get();
  *error = queue->device().error;
  return *error == cudaSuccess ? queue : nullptr;
}

}  // namespace emu

struct CUevent_st {
  const bool has_time;
  std::mutex mu{};
  std::shared_ptr<emu::Point> point = nullptr;  // guarded by mu; null: not recorded yet

  std::shared_ptr<emu::Point> Get() {
    const std::lock_guard lock(mu);
    return point;
  }
};

using namespace emu;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (flags != cudaStreamNonBlocking && flags != cudaStreamDefault) {
    return Report(cudaErrorInvalidValue);
  }
  *stream = new CUstream_st{std::make_shared<Queue>(&CurrentDevice())};
  Streams().Add(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

// A device would end the work some time later.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!Streams().Remove(stream)) return Report(cudaErrorInvalidResourceHandle);
  stream->queue->RunAll();
  const cudaError_t error = CheckContext(stream->queue->device());
  delete stream;
  return Report(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaStreamSynchronize", &error);
  if (queue == nullptr) return Report(error);
  queue->RunAll();
  return Report(queue->device().error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaStreamQuery", &error);
  if (queue == nullptr) return Report(error);
  return Report(queue->HasPassed(queue->last()) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaStreamWaitEvent", &error);
  if (queue == nullptr) return Report(error);
  if (!Events().Has(event)) return Report(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Point> point = event->Get();
  if (point != nullptr && point->queue.get() != queue) {
    queue->Add({.run = [point] { point->queue->RunTo(point->position); }, .waits = true});
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (IsFaulty(&stream_options.faulty_event)) return Report(cudaErrorMemoryAllocation);
  *event = new CUevent_st{.has_time = (flags & cudaEventDisableTiming) == 0};
  Events().Add(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!Events().Remove(event)) return Report(cudaErrorInvalidResourceHandle);
  delete event;
  return Report(CheckContext(CurrentDevice()));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaEventRecord", &error);
  if (queue == nullptr) return Report(error);
  if (!Events().Has(event)) return Report(cudaErrorInvalidResourceHandle);
  auto point = std::make_shared<Point>();
  point->queue = stream->queue;
  point->position =
      queue->Add({[p = point.get(), point] { p->time = std::chrono::steady_clock::now(); }});
  const std::lock_guard lock(event->mu);
  event->point = std::move(point);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!Events().Has(event)) return Report(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Point> point = event->Get();
  if (point == nullptr) return Report(CheckContext(CurrentDevice()));
  const cudaError_t error = CheckContext(point->queue->device());
  if (error != cudaSuccess) return Report(error);
  return Report(point->queue->HasPassed(point->position) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!Events().Has(event)) return Report(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Point> point = event->Get();
  if (point == nullptr) return Report(CheckContext(CurrentDevice()));
  const cudaError_t error = CheckContext(point->queue->device());
  if (error != cudaSuccess) return Report(error);
  point->queue->RunTo(point->position);
  return Report(point->queue->device().error);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!Events().Has(start) || !Events().Has(end)) return Report(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Point> from = start->Get(), to = end->Get();
  if (from == nullptr || to == nullptr || !start->has_time || !end->has_time) {
    return Report(cudaErrorInvalidResourceHandle);
  }
  for (const auto& point : {from, to}) {
    const cudaError_t error = CheckContext(point->queue->device());
    if (error != cudaSuccess) return Report(error);
    if (!point->queue->HasPassed(point->position)) return Report(cudaErrorNotReady);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
