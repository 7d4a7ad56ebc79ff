// Decides when a call may read its message: when the byte budget has room for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/budget.h"
#include "server/task.h"

namespace attnd {

// gRPC assembles a message as soon as somebody reads, whatever its size; a call that is not read
// holds no more than its flow-control window. So who expects a message asks here first.
//
// A message is charged twice its declared size: as received, and its copy in the lane's memory.
// One without declaration is taken for `undeclared_bytes`; such messages share half of the budget,
// so that idle calls of unknown size cannot keep out those who say what they send.
//
// A message that does not arrive in time is given up, so that nobody holds a part of the budget by
// doing nothing: after 30 s and a second for each MiB; while others are short of room after 5 s and
// a second for each 4 MiB, with RESOURCE_EXHAUSTED.
//
// Polling thread only, but for waiting(). Bounded: what waits (max_waiting, streams not counted)
// and what reads (by the budget).
class Intake {
 public:
  struct Options {
    int max_waiting = 4;  // unary calls that wait for room at a time; the rest is refused
    int64_t undeclared_bytes = 16 << 20;
  };

  // One message that is expected. The reader outlives its stay: it leaves before it goes.
  class Reader {
   public:
    // There is room: read. `share` is what the message may hold.
    virtual void OnRoom(Budget::Share share) = 0;
    // It did not arrive in time; the reader has left already. DEADLINE_EXCEEDED, or
    // RESOURCE_EXHAUSTED while others wait.
    virtual void OnOverdue(const absl::Status& status) = 0;

   protected:
    ~Reader() = default;
  };

  static constexpr int64_t kUndeclared = -1;
  // Messages up to this size need no room: they fit the window that an unread call has anyway.
  static constexpr int64_t kFreeBytes = 64 << 10;

  Intake(const Options& options, Budget* budget, const Clock* clock);

  // Calls OnRoom, at once or later. `may_be_refused`: a unary call; RESOURCE_EXHAUSTED when too
  // many wait already. A stream waits, its client is slowed down by flow control.
  // Errors, permanent: more than the whole budget.
  // REQUIRES: the reader is not in here.
  absl::Status Enter(Reader* reader, int64_t message_bytes, bool may_be_refused);

  // The message is here, or nobody wants it any more. Nothing happens if the reader is not in here.
  void Leave(Reader* reader);

  // Lets those read for whom there is room by now.
  void Serve();

  // Gives up what is overdue. About once a second.
  void Sweep();

  // Readers that wait for room. Any thread.
  int waiting() const { return waiting_count_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    int64_t message_bytes = 0;
    bool is_declared = true, is_waiting = false;
    bool is_unary = true;
    TimePoint since;
  };

  int64_t NeedOf(const Entry& entry) const;
  bool TryStart(Reader* reader, Entry* entry);
  void Remove(std::unordered_map<Reader*, Entry>::iterator it);

  const Options options_;
  Budget* const budget_;
  const Clock* const clock_;

  std::unordered_map<Reader*, Entry> entries_;
  std::deque<Reader*> waiting_;  // oldest first
  int waiting_unary_ = 0;
  int64_t undeclared_reading_ = 0;       // bytes
  std::optional<TimePoint> last_short_;  // when somebody last found no room
  std::atomic<int> waiting_count_{0};
};

// The label of a refusal that OnOverdue tells.
inline Refusal OverdueRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? Refusal::kBytes : Refusal::kDeadline;
}

// The value of the metadata key attnd-message-bytes. INVALID_ARGUMENT unless it is a decimal number
// from 0 to `max_message_bytes`.
absl::StatusOr<int64_t> ParseMessageBytes(absl::string_view text, int64_t max_message_bytes);

}  // namespace attnd
