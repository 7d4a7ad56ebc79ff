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

// gRPC assembles a message of any size as soon as the server reads; a call that is not read holds
// no more than its flow-control window. So a call enters here before it reads its message.
//
// A message is charged twice its declared size, for the received bytes and for their copy in the
// lane's memory, but at most 7/8 of the budget. It is read only if a sixteenth of the budget stays
// free beside it, for requests whose messages need no room but whose work does. A message without a
// declared size counts as `undeclared_bytes`; such messages share half of the budget, so that idle
// calls of unknown size cannot keep out declared ones.
//
// A message that does not arrive in time is ended, so that an idle call cannot hold a part of the
// budget: after the time of patience.h. While others are short of room (calls wait here, or
// OnShortage was called) it is ended with RESOURCE_EXHAUSTED as soon as its connection brings less
// than kLeastRate over kWindow.
//
// Order of waiting calls: clients take turns, the one that reads least first; inside a client the
// oldest first. Messages of a quarter of its size may pass a message for which there is no room
// yet, but at most kMostPasses times: then it is first. A client that had a message ended in the
// last kDistrust is distrusted: it comes last, and all distrusted clients together read at most
// half of the budget if another client found no room in that time, so that calls that declare much
// and send nothing do not hold up others. When all places are taken, the newest call of the client
// with the most places is refused in favour of a client that has fewer.
//
// Polling thread only, except waiting(), is_short() and OnShortage(). Bounded: waiting calls by
// max_waiting (streams not counted), reading ones by the budget.
class Intake {
 public:
  struct Options {
    int max_waiting = 4;  // unary calls that wait for room; more are refused
    int64_t undeclared_bytes = 16 << 20;
  };

  // One expected message. REQUIRES: the reader leaves before it is destroyed.
  class Reader {
   public:
    // There is room: read. `share` holds the bytes that the message may take.
    virtual void OnRoom(Budget::Share share) = 0;
    // The message did not arrive in time; the reader has left already. DEADLINE_EXCEEDED, or
    // RESOURCE_EXHAUSTED while others wait.
    virtual void OnOverdue(const absl::Status& status) = 0;
    // Bytes that its connection has received so far; -1: it has no connection.
    virtual int64_t arrived_bytes() const = 0;

   protected:
    ~Reader() = default;
  };

  static constexpr int64_t kUndeclared = -1;
  // Messages up to this size need no room: they fit the window that an unread call has in any case.
  static constexpr int64_t kFreeBytes = 64 << 10;
  static constexpr int64_t kLeastRate = 1 << 20;  // bytes per second, while others wait
  static constexpr std::chrono::seconds kWindow{3};
  static constexpr int kMostPasses = 16;
  static constexpr std::chrono::seconds kDistrust{60};

  Intake(const Options& options, Budget* budget, const Clock* clock);

  struct Arrival {
    int64_t message_bytes = kUndeclared;
    // A unary call: RESOURCE_EXHAUSTED when too many wait already. False for a stream: it waits,
    // and flow control slows its client down.
    bool may_be_refused = true;
    std::string client;  // takes turns and shares places with others
  };

  // Calls OnRoom, at once or later. May call OnOverdue of another reader.
  // Errors, permanent: more than the whole budget.
  // REQUIRES: the reader is not in here.
  absl::Status Enter(Reader* reader, const Arrival& arrival);

  // The message has arrived, or is not wanted any more. Does nothing if the reader is not in here.
  void Leave(Reader* reader);

  // Calls OnRoom of waiting readers as far as there is room.
  void Serve();

  // Ends overdue messages. To be called about once a second.
  void Sweep();

  // To be called when a request that was read found no room for its work. Any thread.
  void OnShortage() { is_short_of_work_.store(true, std::memory_order_relaxed); }

  // Whether a request was short of room at the last sweep or shortly before. Any thread.
  bool is_short() const { return is_short_.load(std::memory_order_relaxed); }
  // Readers that wait for room. Any thread.
  int waiting() const { return waiting_count_.load(std::memory_order_relaxed); }

 private:
  // A client with messages that need room. Kept while it has entries or is distrusted.
  struct Client {
    std::string name;
    int entries = 0, reads = 0;
    int ahead = 0;                     // in FillTurns: how many of it come before its next
    std::optional<TimePoint> gave_up;  // when a message of it was last ended
  };
  struct Entry {
    Reader* reader = nullptr;
    Client* client = nullptr;  // null: it needs no room
    int64_t message_bytes = 0;
    bool is_declared = true, is_unary = true;
    bool is_waiting = false, is_reading = false;
    bool is_distrusted = false;  // when it began to be read
    TimePoint since;
    int passed = 0;  // how often later messages passed it
    // The current window of CheckProgress: its start, and the bytes that had arrived by then.
    TimePoint window_start;
    int64_t window_bytes = -1;
  };
  using Entries = std::unordered_map<Reader*, Entry>;
  struct Turn {
    int rank = 0, place = 0;  // lower comes first; `place` in waiting_
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
  std::vector<Turn> turns_;      // a heap in Serve; a member to keep its memory
  int waiting_unary_ = 0;
  int64_t undeclared_reading_ = 0, distrusted_reading_ = 0;  // bytes
  std::optional<TimePoint> last_short_;                      // when a request last found no room
  // The same for clients that are not distrusted. Empty name: the work of a request.
  struct Shortage {
    TimePoint when;
    std::string client;
  };
  std::optional<Shortage> trusted_short_;
  std::atomic<bool> is_short_of_work_{false};  // since the last sweep
  std::atomic<bool> is_short_{false};
  std::atomic<int> waiting_count_{0};
};

// The metric label of a status that OnOverdue got.
inline Refusal OverdueRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? Refusal::kBytes : Refusal::kDeadline;
}

// The value of the metadata key attnd-message-bytes. INVALID_ARGUMENT unless it is a decimal number
// from 0 to `max_message_bytes`.
absl::StatusOr<int64_t> ParseMessageBytes(absl::string_view text, int64_t max_message_bytes);

}  // namespace attnd
