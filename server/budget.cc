#include "server/budget.h"

#include <cassert>
#include <utility>

namespace attnd {

struct Budget::State {
  explicit State(int64_t t) : total(t) {}

  bool TryTake(int64_t bytes, int64_t left_free = 0) ATTND_REQUIRES(mu) {
    if (bytes > total - used - left_free) return false;
    used += bytes;
    return true;
  }

  const int64_t total;
  Mutex mu;
  CondVar room;
  int64_t used ATTND_GUARDED_BY(mu) = 0;
  bool is_wanted ATTND_GUARDED_BY(mu) = false;  // TakeOrWait failed: WaitForRoom waits
  bool came_back ATTND_GUARDED_BY(mu) = false;  // since then bytes were returned
  bool is_closed ATTND_GUARDED_BY(mu) = false;
};

Budget::Share& Budget::Share::operator=(Share&& other) noexcept {
  if (this != &other) {
    Give(bytes_);
    state_ = std::move(other.state_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

bool Budget::Share::Resize(int64_t bytes) {
  assert(bytes >= 0);
  if (bytes <= bytes_) {
    Give(bytes_ - bytes);
  } else {
    if (state_ == nullptr) return false;
    const MutexLock lock(&state_->mu);
    if (!state_->TryTake(bytes - bytes_)) return false;
  }
  bytes_ = bytes;
  return true;
}

void Budget::Share::Give(int64_t bytes) {
  if (state_ == nullptr || bytes == 0) return;
  bool notifies = false;
  {
    const MutexLock lock(&state_->mu);
    state_->used -= bytes;
    assert(state_->used >= 0);
    notifies = std::exchange(state_->is_wanted, false);
    state_->came_back = state_->came_back || notifies;
  }
  if (notifies) state_->room.NotifyOne();
}

Budget::Budget(int64_t total) : state_(std::make_shared<State>(total)) { assert(total > 0); }
Budget::~Budget() { Close(); }

int64_t Budget::total() const { return state_->total; }

int64_t Budget::used() const {
  const MutexLock lock(&state_->mu);
  return state_->used;
}

std::optional<Budget::Share> Budget::Take(int64_t bytes) {
  return TakeLeaving(0, bytes, /*waits=*/false);
}

std::optional<Budget::Share> Budget::TakeOrWait(int64_t bytes, int64_t left_free) {
  return TakeLeaving(bytes > 0 ? left_free : 0, bytes, /*waits=*/true);
}

std::optional<Budget::Share> Budget::TakeLeaving(int64_t left_free, int64_t bytes, bool waits) {
  assert(bytes >= 0 && left_free >= 0);
  Share share;
  {
    const MutexLock lock(&state_->mu);
    if (!state_->TryTake(bytes, left_free)) {
      state_->is_wanted = state_->is_wanted || waits;
      return std::nullopt;
    }
  }
  share.state_ = state_;
  share.bytes_ = bytes;
  return share;
}

bool Budget::WaitForRoom() {
  const MutexLock lock(&state_->mu);
  while (!state_->came_back && !state_->is_closed) state_->room.Wait(&state_->mu);
  state_->came_back = false;
  return !state_->is_closed;
}

void Budget::Close() {
  {
    const MutexLock lock(&state_->mu);
    state_->is_closed = true;
  }
  state_->room.NotifyOne();
}

}  // namespace attnd
