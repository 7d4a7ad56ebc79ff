#include "kernels/device/device_copies.h"

namespace attnd {

std::shared_ptr<const void> DeviceCopies::Of(
    Stream& stream, const std::function<std::shared_ptr<const void>()>& make) {
  const MutexLock lock(&mu_);
  Copy& copy = copies_[&stream.device()];
  const std::shared_ptr<WorkQueue>& queue = stream.queue();
  // Work that is pending in the order of this stream comes before what uses the copy, and if it
  // fails, that is skipped.
  const bool is_in_order = copy.queue == queue && queue != nullptr;
  if (copy.queue != nullptr && !(is_in_order && !queue->HasPassed(copy.position))) {
    if (!copy.queue->WaitFor(copy.position)) copy.data = nullptr;
    copy.queue = nullptr;
  }
  if (copy.data == nullptr) {
    copy.data = make();
    copy.queue = queue;
    copy.position = queue == nullptr ? 0 : queue->position();
  }
  return copy.data;
}

}  // namespace attnd
