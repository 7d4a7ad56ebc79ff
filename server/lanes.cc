#include "server/lanes.h"

#include <utility>

#include "kernels/core/status.h"
#include "server/no_memory.h"
#include "server/thread.h"

namespace attnd {

Lanes::Lanes(const Lane::Parts& parts, int count) : batcher_(parts.batcher) {
  for (int i = 0; i < count; ++i) {
    Lane::Parts own = parts;
    own.index = parts.index + i;
    lanes_.push_back(std::make_unique<Lane>(own));
  }
}

Lanes::~Lanes() { Join(); }

absl::Status Lanes::Start() {
  for (const std::unique_ptr<Lane>& lane : lanes_) ATTND_RETURN_IF_ERROR(lane->Start());
  absl::StatusOr<std::thread> watch =
      StartThread("lane-watch", [this] { UntilMemory([this] { batcher_->Watch(); }); });
  ATTND_RETURN_IF_ERROR(watch.status());
  watch_ = *std::move(watch);
  return absl::OkStatus();
}

void Lanes::Join() {
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->Join();
  if (watch_.joinable()) watch_.join();
}

void Lanes::Sweep() {
  batcher_->Sweep();
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->Sweep();
}

void Lanes::WatchBy(Watchdog* watchdog) {
  for (const std::unique_ptr<Lane>& lane : lanes_) watchdog->Watch(lane->part());
}

int64_t Lanes::input_bytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<Lane>& lane : lanes_) bytes += lane->input_bytes();
  return bytes;
}

int64_t Lanes::host_input_bytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<Lane>& lane : lanes_) bytes += lane->host_input_bytes();
  return bytes;
}

}  // namespace attnd
