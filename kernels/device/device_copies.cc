#include "kernels/device/device_copies.h"

namespace attnd {

std::shared_ptr<const void> DeviceCopies::Of(
    Stream& stream, const std::function<std::shared_ptr<const void>()>& make) {
  const MutexLock lock(&mu_);
  Copy& copy = copies_[&stream.device()];
  const std::shared_ptr<WorkProgress> own =
      stream.queue() == nullptr ? nullptr : stream.queue()->progress();
  // Work that is pending in the order of this stream comes before what uses the copy, and if it
  // fails, that is skipped.
  const bool is_in_order =
      copy.progress != nullptr && copy.progress == own && !own->HasPassed(copy.position);
  if (copy.progress != nullptr && !is_in_order) {
    if (!copy.progress->WaitFor(copy.position)) copy.data = nullptr;
    copy.progress = nullptr;
  }
  if (copy.data == nullptr) {
    copy.data = make();
    copy.progress = own;
    copy.position = own == nullptr ? 0 : own->position();
  }
  return copy.data;
}

}  // namespace attnd
