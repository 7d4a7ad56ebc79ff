// A queue whose work does not begin before a thread waits for it.
#pragma once

#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/device/memory.h"
#include "tests/device/arena.h"

namespace attnd::testing {

// What LateQueue and those that wait for its work share.
class LateProgress final : public WorkProgress {
 public:
  int64_t position() const override {
    const std::lock_guard lock(mu_);
    return last_;
  }
  bool HasPassed(int64_t position) const override {
    const std::lock_guard lock(mu_);
    return done_ >= position;
  }
  bool WaitFor(int64_t position) override {
    std::unique_lock lock(mu_);
    WaitFor(position, &lock);
    for (const Lost& lost : lost_) {
      if (position >= lost.first && position <= lost.last) return false;
    }
    return true;
  }

 private:
  friend class LateQueue;

  // Positions whose work failed or was skipped.
  struct Lost {
    int64_t first, last;
  };

  void WaitFor(int64_t position, std::unique_lock<std::mutex>* lock) {
    if (position > asked_) asked_ = position;
    changed_.notify_all();
    changed_.wait(*lock, [&] { return done_ >= position; });
  }

  mutable std::mutex mu_;
  std::condition_variable changed_;
  int64_t last_ = 0, asked_ = 0, done_ = 0;  // positions: given, waited for, passed
  std::deque<Lost> lost_;
};

// Runs its work on a thread of its own, with the arena open, up to the position that is waited for.
class LateQueue final : public WorkQueue {
 public:
  using Work = std::function<DeviceStatus()>;
  static constexpr size_t kMost = 1024;

  explicit LateQueue(Arena* arena) : arena_(arena), thread_([this] { Loop(); }) {}
  ~LateQueue() override {
    assert(thread_.get_id() != std::this_thread::get_id());
    {
      const std::lock_guard lock(progress_->mu_);
      progress_->asked_ = progress_->last_;
      ends_ = true;
    }
    progress_->changed_.notify_all();
    thread_.join();
  }

  // Waits where the queue is full, as drivers do.
  void Add(Work work) {
    std::unique_lock lock(progress_->mu_);
    if (works_.size() >= kMost) progress_->WaitFor(progress_->last_, &lock);
    works_.push_back(std::move(work));
    ++progress_->last_;
  }

  std::shared_ptr<WorkProgress> progress() const override { return progress_; }
  DeviceStatus Wait() override {
    std::unique_lock lock(progress_->mu_);
    progress_->WaitFor(progress_->last_, &lock);
    return std::exchange(failure_, DeviceStatus());
  }

 private:
  void Loop() {
    LateProgress& progress = *progress_;
    std::unique_lock lock(progress.mu_);
    for (;;) {
      progress.changed_.wait(lock, [&] { return progress.done_ < progress.asked_ || ends_; });
      if (progress.done_ == progress.asked_) return;
      const Arena::Scope open(arena_);
      while (progress.done_ < progress.asked_) RunOne(&lock);
    }
  }

  void RunOne(std::unique_lock<std::mutex>* lock) {
    Work work = std::move(works_.front());
    works_.pop_front();
    const bool is_skipped = !failure_.ok();
    lock->unlock();
    DeviceStatus status = is_skipped ? DeviceStatus() : work();
    work = nullptr;  // its destructor may take locks
    lock->lock();
    LateProgress& progress = *progress_;
    ++progress.done_;
    if (is_skipped) {
      progress.lost_.back().last = progress.done_;
    } else if (!status.ok()) {
      failure_ = std::move(status);
      progress.lost_.push_back({progress.done_, progress.done_});
    }
    progress.changed_.notify_all();
  }

  Arena* const arena_;
  const std::shared_ptr<LateProgress> progress_ = std::make_shared<LateProgress>();
  // Guarded by the mutex of the progress.
  std::deque<Work> works_;
  DeviceStatus failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace attnd::testing
