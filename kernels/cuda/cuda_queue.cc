#include "kernels/cuda/cuda_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_device.h"

namespace attnd::cuda {
namespace {

// A stream holds at most so much work: as much as a cancelled run may still take, and several times
// what the host needs to ask for more.
constexpr double kThrottleSeconds = 2e-3;
constexpr int64_t kThrottlePieces = 256;
constexpr size_t kThrottles = 3;
// A queue asks whether what it holds is still in use where there are so many: asking costs an
// event.
constexpr size_t kHeld = 16;

}  // namespace

Event::Event() {
  // A waiting thread sleeps: cores belong to lanes that compute.
  if (cudaEventCreateWithFlags(&event_, cudaEventBlockingSync | cudaEventDisableTiming) !=
      cudaSuccess) {
    event_ = nullptr;
  }
}
Event::~Event() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

std::unique_ptr<QueueResources> QueueResources::New(int device, CopiedBytes* copied) {
  auto resources = std::make_unique<QueueResources>();
  resources->device = device;
  if (cudaStreamCreateWithFlags(&resources->stream, cudaStreamNonBlocking) != cudaSuccess) {
    return nullptr;
  }
  resources->staging = std::make_unique<Staging>(resources->stream, copied);
  return resources;
}

QueueResources::~QueueResources() {
  staging = nullptr;
  if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
}

int64_t CudaProgress::position() const {
  const MutexLock lock(&mu_);
  return position_;
}

void CudaProgress::Poll() const {
  while (!markers_.empty()) {
    const cudaError_t state = cudaEventQuery(markers_.front().event->get());
    if (state == cudaErrorNotReady) return;
    if (state != cudaSuccess) {
      error_ = state;
      passed_ = position_;
      markers_.clear();
      return;
    }
    passed_ = std::max(passed_, markers_.front().position);
    markers_.pop_front();
  }
}

std::shared_ptr<Event> CudaProgress::MarkerAt(int64_t position) const {
  Poll();
  if (has_ended_ || passed_ >= position) return nullptr;
  for (const Marker& marker : markers_) {
    if (marker.position >= position) return marker.event;
  }
  static_cast<void>(cudaSetDevice(device_));
  try {
    auto event = std::make_shared<Event>();
    if (event->get() != nullptr && cudaEventRecord(event->get(), stream_) == cudaSuccess) {
      markers_.push_back({position_, event});
      return event;
    }
  } catch (const std::bad_alloc&) {  // destructors of buffers ask
  }
  // Without an event only all of it can be asked for.
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state != cudaErrorNotReady) AllPassed(state);
  return nullptr;
}

void CudaProgress::AllPassed(cudaError_t state) const {
  if (state != cudaSuccess) error_ = state;
  passed_ = position_;
}

bool CudaProgress::IsPast(int64_t position) const { return has_ended_ || passed_ >= position; }

bool CudaProgress::HasPassed(int64_t position) const {
  const MutexLock lock(&mu_);
  static_cast<void>(MarkerAt(position));  // for the next call
  return IsPast(position);
}

void CudaProgress::WaitWithoutEvent(int64_t position) {
  if (!IsPast(position)) AllPassed(cudaStreamSynchronize(stream_));
}

bool CudaProgress::WaitFor(int64_t position) {
  std::shared_ptr<Event> event;
  {
    const MutexLock lock(&mu_);
    event = MarkerAt(position);
    if (event == nullptr) WaitWithoutEvent(position);
  }
  const cudaError_t state = event == nullptr ? cudaSuccess : cudaEventSynchronize(event->get());
  const MutexLock lock(&mu_);
  if (state == cudaSuccess) {
    passed_ = std::max(passed_, position);
  } else {
    error_ = state;
    passed_ = position_;
  }
  return error_ == cudaSuccess;
}

void CudaProgress::Add(double seconds) {
  std::shared_ptr<Event> oldest;
  {
    const MutexLock lock(&mu_);
    ++position_;
    ++pieces_;
    seconds_ += seconds;
    if (seconds_ < kThrottleSeconds && pieces_ < kThrottlePieces) return;
    const std::shared_ptr<Event> event = MarkerAt(position_);
    seconds_ = 0, pieces_ = 0;
    if (event == nullptr) {
      WaitWithoutEvent(position_);
      return;
    }
    throttles_.push_back(event);
    if (throttles_.size() <= kThrottles) return;
    oldest = std::move(throttles_.front());
    throttles_.pop_front();
  }
  // A failure shows in the next call of the stream.
  static_cast<void>(cudaEventSynchronize(oldest->get()));
}

void CudaProgress::PassAll(cudaError_t error) {
  const MutexLock lock(&mu_);
  passed_ = position_;
  markers_.clear();
  throttles_.clear();
  seconds_ = 0, pieces_ = 0;
  if (error != cudaSuccess) error_ = error;
}

void CudaProgress::End() {
  const MutexLock lock(&mu_);
  has_ended_ = true;
  markers_.clear();
  throttles_.clear();
}

cudaError_t CudaProgress::error() const {
  const MutexLock lock(&mu_);
  return error_;
}

CudaQueue::CudaQueue(CudaDevice* device, std::unique_ptr<QueueResources> resources)
    : device_(device),
      resources_(std::move(resources)),
      progress_(std::make_shared<CudaProgress>(resources_->device, resources_->stream)) {}

CudaQueue::~CudaQueue() {
  static_cast<void>(Wait());
  progress_->End();
  device_->GiveBack(std::move(resources_));
}

void CudaQueue::Hold(std::shared_ptr<const void> what) {
  const int64_t position = progress_->position();
  try {
    held_.push_back({position, what});
  } catch (const std::bad_alloc&) {  // also of destructors: it ends here, once it was read
    static_cast<void>(progress_->WaitFor(position));
  }
  if (held_.size() < kHeld) return;
  while (!held_.empty() && progress_->HasPassed(held_.front().position)) held_.pop_front();
}

DeviceStatus CudaQueue::Wait() {
  static_cast<void>(cudaSetDevice(resources_->device));
  const cudaError_t error = cudaStreamSynchronize(resources_->stream);
  progress_->PassAll(error);
  held_.clear();
  return StatusOf(progress_->error(), "stream");
}

}  // namespace attnd::cuda
