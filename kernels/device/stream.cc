#include "kernels/device/stream.h"

#include "kernels/device/device.h"

namespace attnd {

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
