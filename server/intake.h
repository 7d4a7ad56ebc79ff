// Decides when a call may read its message: when the byte budget has room for it.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/budget.h"
#include "server/task.h"

namespace attnd {

// gRPC assembles a message as soon as somebody reads, whatever its size; a call that is not read
// holds no more than its flow-control window. So who expects a message asks here first.
//
// A message is charged twice its declared size: as received, and its copy in the lane's memory; at
// most 7/8 of the budget. It is not read before a sixteenth of the budget stays free beside it: for
// requests whose messages need no room, but whose work does.
// One without declaration is taken for `undeclared_bytes`; such messages share half of the budget,
// so that idle calls of unknown size cannot keep out those who say what they send.
//
// A message that does not arrive in time is given up, so that nobody holds a part of the budget by
// doing nothing: after the time of patience.h, and while others are short of room (they wait here,
// or OnShortage told so) as soon as its connection brings less than kLeastRate over kWindow, with
// RESOURCE_EXHAUSTED.
//
// Who waits: clients take turns, the one that reads least first; inside one, the oldest first. A
// message for which there is no room yet is passed by messages of a quarter of its size, but
// kMostPasses times at most: then it is first. A client of whom a message was given up in the last
// kDistrust comes last, and all such clients together read no more than half of the budget if one
// of the others found no room in that time: who announces much and sends nothing holds up nobody.
// When all places are taken, the newest of the client that has most of them makes room for a client
// that has fewer.
//
// Polling thread only, but for waiting(), is_short() and OnShortage(). Bounded: what waits
// (max_waiting, streams not counted) and what reads (by the budget).
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
    // Bytes that its connection has brought so far; -1: it has none.
    virtual int64_t arrived_bytes() const = 0;

   protected:
    ~Reader() = default;
  };

  static constexpr int64_t kUndeclared = -1;
  // Messages up to this size need no room: they fit the window that an unread call has anyway.
  static constexpr int64_t kFreeBytes = 64 << 10;
  static constexpr int64_t kLeastRate = 1 << 20;  // bytes per second, while others wait
  static constexpr std::chrono::seconds kWindow{3};
  static constexpr int kMostPasses = 16;
  static constexpr std::chrono::seconds kDistrust{60};

  Intake(const Options& options, Budget* budget, const Clock* clock);

  struct Arrival {
    int64_t message_bytes = kUndeclared;
    // A unary call, RESOURCE_EXHAUSTED when too many wait already. A stream waits, its client is
    // slowed down by flow control.
    bool may_be_refused = true;
    std::string client;  // who shares places and turns with whom
  };

  // Calls OnRoom, at once or later. Another reader may be told OnOverdue meanwhile.
  // Errors, permanent: more than the whole budget.
  // REQUIRES: the reader is not in here.
  absl::Status Enter(Reader* reader, const Arrival& arrival);

  // The message is here, or nobody wants it any more. Nothing happens if the reader is not in here.
  void Leave(Reader* reader);

  // Lets those read for whom there is room by now.
  void Serve();

  // Gives up what is overdue. About once a second.
  void Sweep();

  // A request that was read found no room for its work. Any thread.
  void OnShortage() { is_short_of_work_.store(true, std::memory_order_relaxed); }

  // Whether somebody was short of room at the last sweep, or shortly before. Any thread.
  bool is_short() const { return is_short_.load(std::memory_order_relaxed); }
  // Readers that wait for room. Any thread.
  int waiting() const { return waiting_count_.load(std::memory_order_relaxed); }

 private:
  // Of those whose messages need room. Kept while it has any here, or is distrusted.
  struct Client {
    std::string name;
    int entries = 0, reads = 0;
    int ahead = 0;                     // while turns are given: how many come before its next
    std::optional<TimePoint> gave_up;  // when a message of it was
  };
  struct Entry {
    Reader* reader = nullptr;
    Client* client = nullptr;  // none: it needs no room
    int64_t message_bytes = 0;
    bool is_declared = true, is_unary = true;
    bool is_waiting = false, is_reading = false;
    bool is_distrusted = false;  // when it began to be read
    TimePoint since;
    int passed = 0;  // by later ones, while it waits
    // Of the window that is looked at: when it began and what had arrived.
    TimePoint window_start;
    int64_t window_bytes = -1;
  };
  using Entries = std::unordered_map<Reader*, Entry>;
  struct Turn {
    int rank = 0, place = 0;  // the least first; place in waiting_
    Entry* entry = nullptr;
    auto operator<=>(const Turn&) const = default;
  };

  int64_t NeedOf(const Entry& entry) const;
  void Join(Entry* entry, const std::string& client);
  bool TryStart(Entry* entry);
  int64_t FillTurns();
  static bool IsDistrusted(const Entry& entry);
  bool HasPrecedence(const Entry& entry) const;
  bool FitsItsPart(const Entry& entry) const;
  absl::Status MakePlace(Entry* newcomer);
  absl::Status CheckProgress(Entry* entry, TimePoint now, bool is_short);
  void Distrust(Client* client, TimePoint now);
  void ForgetClients(TimePoint now);
  void FindShortage(TimePoint now);
  void StopWaiting(Entry* entry);
  void Remove(Entries::iterator it);

  const Options options_;
  Budget* const budget_;
  const Clock* const clock_;

  Entries entries_;
  std::unordered_map<std::string, Client> clients_;
  int distrusted_clients_ = 0;
  std::vector<Entry*> waiting_;  // oldest first
  std::vector<Turn> turns_;      // of Serve; a heap, kept for its memory
  int waiting_unary_ = 0;
  int64_t undeclared_reading_ = 0, distrusted_reading_ = 0;  // bytes
  std::optional<TimePoint> last_short_;                      // when somebody last found no room
  // The same of clients that are not distrusted; of the work of requests: no name.
  struct Shortage {
    TimePoint when;
    std::string client;
  };
  std::optional<Shortage> trusted_short_;
  std::atomic<bool> is_short_of_work_{false};  // since the last sweep
  std::atomic<bool> is_short_{false};
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
