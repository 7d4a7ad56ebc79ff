// The byte budget: how many bytes all requests together may hold.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/core/mutex.h"

namespace attnd {

// A share is taken before a message is read and returned when gRPC has released the reply, on any
// thread. Thread safe; shares may outlive the budget.
class Budget {
  struct State;

 public:
  // Bytes that its owner may hold; the destructor returns them. Not thread safe itself.
  class Share {
   public:
    Share() = default;  // without a budget: 0 bytes, cannot grow
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { Give(bytes_); }

    int64_t bytes() const { return bytes_; }
    // False, without a change, if it would grow and the budget has no room.
    [[nodiscard]] bool Resize(int64_t bytes);

   private:
    friend class Budget;
    void Give(int64_t bytes);

    std::shared_ptr<State> state_;
    int64_t bytes_ = 0;
  };

  // REQUIRES: total > 0.
  explicit Budget(int64_t total);
  // Ends WaitForRoom.
  ~Budget();

  int64_t total() const;
  int64_t used() const;

  // A share of `bytes` (0 always fits), or nothing when there is no room.
  std::optional<Share> Take(int64_t bytes);
  // The same for a caller that will wait: if there is no room, the next returned bytes end
  // WaitForRoom. `left_free`: how much must stay free; ignored for 0 bytes.
  std::optional<Share> TakeOrWait(int64_t bytes, int64_t left_free = 0);

  // Blocks until bytes are returned after TakeOrWait failed; false once Close was called. One
  // thread waits. It is no callback, since gRPC may return bytes inside a call of its own, where
  // gRPC must not be called.
  bool WaitForRoom();
  void Close();

 private:
  std::optional<Share> TakeLeaving(int64_t left_free, int64_t bytes, bool waits);

  const std::shared_ptr<State> state_;
};

}  // namespace attnd
