#include "kernels/device/stream.h"

#include "kernels/device/device.h"

namespace attnd {

void Work::Repeat(const Work& before, int64_t times) {
  seconds += static_cast<double>(times - 1) * (seconds - before.seconds);
  host_bytes += (times - 1) * (host_bytes - before.host_bytes);
}

Stream::Stream(Device& device, BufferPool* memory, RunControl* control)
    : device_(device),
      queue_(memory == nullptr ? nullptr : device.NewQueue()),
      workspace_(memory, queue_),
      control_(control) {}

Stream::~Stream() { static_cast<void>(Wait()); }

bool Stream::shares_host_memory() const {
  return queue_ == nullptr && device_.info().has_host_memory;
}

DeviceStatus Stream::Wait() { return queue_ == nullptr ? DeviceStatus() : queue_->Wait(); }

}  // namespace attnd
