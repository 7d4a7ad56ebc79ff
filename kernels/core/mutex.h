// std::mutex with clang's thread-safety annotations. absl::Mutex as packaged by Debian hides its
// locking from the thread sanitizer, so this project uses its own.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define ATTND_TSA(x) __attribute__((x))
#else
#define ATTND_TSA(x)
#endif
#define ATTND_GUARDED_BY(mu) ATTND_TSA(guarded_by(mu))
#define ATTND_REQUIRES(mu) ATTND_TSA(requires_capability(mu))

namespace attnd {

class ATTND_TSA(capability("mutex")) Mutex {
 public:
  void Lock() ATTND_TSA(acquire_capability()) { mu_.lock(); }
  void Unlock() ATTND_TSA(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ATTND_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ATTND_TSA(acquire_capability(mu)) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ATTND_TSA(release_capability()) { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// REQUIRES for every Wait: `mu` is held. Spurious wake-ups happen: wait in a loop.
class CondVar {
 public:
  void Wait(Mutex* mu) ATTND_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  template <class TimePoint>
  void WaitUntil(Mutex* mu, TimePoint when) ATTND_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait_until(lock, when);
    lock.release();
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace attnd
