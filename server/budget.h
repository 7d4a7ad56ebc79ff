// The byte budget: what requests may hold at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/core/mutex.h"

namespace attnd {

// Shares of it are taken when a message is about to be read and given back when gRPC has let go of
// the reply, on whatever thread that is. Thread safe; shares may outlive it.
class Budget {
  struct State;

 public:
  // Bytes that its owner may hold; given back when it is destroyed. Not thread safe itself.
  class Share {
   public:
    Share() = default;  // of no budget: 0 bytes, cannot grow
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { Give(bytes_); }

    int64_t bytes() const { return bytes_; }
    // False, and nothing changes, when it would grow and the budget has no room.
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
  // The same for one who waits: if there is no room, the next bytes that come back end WaitForRoom.
  // `left_free`: how much must be free after it; of no account for 0 bytes.
  std::optional<Share> TakeOrWait(int64_t bytes, int64_t left_free = 0);

  // Blocks until bytes came back after TakeOrWait failed; false once Close was called.
  // One thread waits. No callback instead: what gives bytes back may be gRPC in the middle of its
  // work, from where it must not be called.
  bool WaitForRoom();
  void Close();

 private:
  std::optional<Share> TakeLeaving(int64_t left_free, int64_t bytes, bool waits);

  const std::shared_ptr<State> state_;
};

}  // namespace attnd
