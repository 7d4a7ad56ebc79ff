#include "server/intake.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/patience.h"
#include "server/plan_limits.h"
#include "server/reasons.h"

namespace attnd {
namespace {

using std::chrono::seconds;

// One part in this many of the budget stays free beside the messages that are read.
constexpr int64_t kReservedPart = 16;
// One message is charged at most the budget less one part in this many. That part is twice the free
// one, so that the largest message can be read while small requests are at work.
constexpr int64_t kSparedPart = 8;
// Clients that are remembered for messages that did not arrive.
constexpr int kMostDistrusted = 4096;
// More than a client can have messages.
constexpr int kLastRank = 1 << 30;
// Room counts as short for this long after a reader found none.
constexpr seconds kShortage{3};

}  // namespace

Intake::Intake(const Options& options, Budget* budget, const Clock* clock)
    : options_(options), budget_(budget), clock_(clock) {}

int64_t Intake::NeedOf(const Entry& entry) const {
  if (!entry.is_declared) return std::min(entry.message_bytes, budget_->total() / 2);
  if (entry.message_bytes <= kFreeBytes) return 0;
  return std::min(2 * entry.message_bytes, budget_->total() - budget_->total() / kSparedPart);
}

absl::Status Intake::Enter(Reader* reader, const Arrival& arrival) {
  assert(entries_.find(reader) == entries_.end());
  ATTND_RETURN_IF_ERROR(CheckMessageFits(arrival.message_bytes, *budget_));
  Entry& entry = entries_[reader];
  entry.reader = reader;
  entry.is_declared = arrival.message_bytes != kUndeclared;
  entry.message_bytes = entry.is_declared ? arrival.message_bytes : options_.undeclared_bytes;
  entry.is_unary = arrival.may_be_refused;
  entry.since = clock_->Now();
  try {
    if (NeedOf(entry) > 0) Join(&entry, arrival.client);
    const bool is_first = entry.client == nullptr || waiting_.empty();
    if (is_first && TryStart(&entry)) return absl::OkStatus();
    waiting_.push_back(&entry);
  } catch (...) {
    Leave(reader);
    throw;
  }
  entry.is_waiting = true;
  waiting_unary_ += entry.is_unary ? 1 : 0;
  waiting_count_.fetch_add(1, std::memory_order_relaxed);
  Serve();
  if (!entry.is_waiting) return absl::OkStatus();
  last_short_ = entry.since;
  if (!IsDistrusted(entry)) trusted_short_ = {entry.since, arrival.client};
  return entry.is_unary && waiting_unary_ > options_.max_waiting ? MakePlace(&entry)
                                                                 : absl::OkStatus();
}

void Intake::Join(Entry* entry, const std::string& client) {
  Client& joined = clients_.try_emplace(client, Client{.name = client}).first->second;
  joined.entries += 1;
  entry->client = &joined;
}

// Refuses one call because no place is left: the newcomer, unless another client has more places.
absl::Status Intake::MakePlace(Entry* newcomer) {
  std::unordered_map<const Client*, int> places;
  for (const Entry* entry : waiting_) places[entry->client] += entry->is_unary ? 1 : 0;
  Entry* victim = newcomer;
  int most = places[newcomer->client];
  for (Entry* entry : waiting_) {
    const int count = places[entry->client];
    // The last one found of the client with the most is its newest.
    if (!entry->is_unary || count < most || (count == most && victim == newcomer)) continue;
    most = count;
    victim = entry;
  }
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("request: ", waiting_unary_ - 1, " requests wait to be read already, ",
                   budget_->total() - budget_->used(), " bytes of ", budget_->total(),
                   " are free, retry later"));
  const bool is_newcomer = victim == newcomer;
  Reader* const reader = victim->reader;
  Leave(reader);
  if (is_newcomer) return status;
  reader->OnOverdue(status);
  return absl::OkStatus();
}

// Undeclared messages share half of the budget, and so do those of distrusted clients.
bool Intake::FitsItsPart(const Entry& entry) const {
  const int64_t need = NeedOf(entry), part = budget_->total() / 2;
  if (!entry.is_declared && undeclared_reading_ + need > part) return false;
  if (!IsDistrusted(entry) || distrusted_reading_ + need <= part) return true;
  return !trusted_short_.has_value() || trusted_short_->client == entry.client->name ||
         clock_->Now() - trusted_short_->when >= kDistrust;
}

// Moves the entry to reading and calls its OnRoom if there is room.
bool Intake::TryStart(Entry* entry) {
  const int64_t need = NeedOf(*entry);
  if (need > 0 && !FitsItsPart(*entry)) return false;
  std::optional<Budget::Share> share = budget_->TakeOrWait(need, budget_->total() / kReservedPart);
  if (!share.has_value()) return false;
  StopWaiting(entry);
  entry->is_reading = true;
  entry->is_distrusted = IsDistrusted(*entry);
  entry->since = clock_->Now();
  if (!entry->is_declared) undeclared_reading_ += need;
  if (entry->is_distrusted) distrusted_reading_ += need;
  if (entry->client != nullptr) entry->client->reads += 1;
  entry->reader->OnRoom(*std::move(share));
  return true;
}

void Intake::StopWaiting(Entry* entry) {
  if (!std::exchange(entry->is_waiting, false)) return;
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), entry));
  waiting_unary_ -= entry->is_unary ? 1 : 0;
  waiting_count_.fetch_sub(1, std::memory_order_relaxed);
}

bool Intake::IsDistrusted(const Entry& entry) {
  return entry.client != nullptr && entry.client->gave_up.has_value();
}

bool Intake::HasPrecedence(const Entry& entry) const {
  return entry.passed >= kMostPasses && !IsDistrusted(entry);
}

// Fills turns_ with the waiting entries as a heap, the next one on top. Returns the least need.
int64_t Intake::FillTurns() {
  turns_.clear();
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Entry* entry : waiting_) {
    if (entry->client != nullptr) entry->client->ahead = entry->client->reads;
  }
  for (Entry* entry : waiting_) {
    const int rank = entry->client == nullptr ? 0 : entry->client->ahead++;
    const int last = IsDistrusted(*entry) ? kLastRank : 0;
    turns_.push_back({.rank = HasPrecedence(*entry) ? -1 : last + rank,
                      .place = static_cast<int>(turns_.size()),
                      .entry = entry});
    least = std::min(least, NeedOf(*entry));
  }
  std::make_heap(turns_.begin(), turns_.end(), std::greater<>());
  return least;
}

// Thousands of streams may wait, and each arrival and end calls Serve: so it returns once no entry
// is left that may pass those that found no room.
void Intake::Serve() {
  const int64_t least = FillTurns();
  Entry* blocked = nullptr;  // the first that found no room
  // The most that an entry may need to pass all entries that found no room.
  int64_t most = std::numeric_limits<int64_t>::max();
  while (!turns_.empty() && least <= most) {
    std::pop_heap(turns_.begin(), turns_.end(), std::greater<>());
    Entry* const entry = turns_.back().entry;
    turns_.pop_back();
    const int64_t need = NeedOf(*entry);
    if (need <= most && TryStart(entry)) {
      // Only the first one, so that waiting entries gain precedence one after the other.
      if (blocked != nullptr) blocked->passed += 1;
    } else if (entry->is_declared) {
      // Undeclared entries do not block others: they may wait for their half of the budget only.
      if (blocked == nullptr) blocked = entry;
      most = std::min(most, HasPrecedence(*entry) ? -1 : need / 4);
    }
  }
}

void Intake::Leave(Reader* reader) {
  const auto found = entries_.find(reader);
  if (found != entries_.end()) Remove(found);
}

void Intake::Remove(Entries::iterator it) {
  Entry& entry = it->second;
  StopWaiting(&entry);
  if (entry.is_reading) {
    if (!entry.is_declared) undeclared_reading_ -= NeedOf(entry);
    if (entry.is_distrusted) distrusted_reading_ -= NeedOf(entry);
    if (entry.client != nullptr) entry.client->reads -= 1;
  }
  Client* const client = entry.client;
  entries_.erase(it);
  if (client != nullptr && --client->entries == 0 && !client->gave_up.has_value()) {
    clients_.erase(clients_.find(client->name));
  }
  if (!waiting_.empty()) Serve();
}

// OK: its message arrives fast enough.
absl::Status Intake::CheckProgress(Entry* entry, TimePoint now, bool is_short) {
  const int64_t arrived = NeedOf(*entry) > 0 ? entry->reader->arrived_bytes() : -1;
  const seconds patience = Patience(entry->message_bytes, is_short);
  if (now - entry->since > patience) {
    const std::string rule =
        absl::StrCat("request: its message must arrive within ", patience.count(), " s");
    return is_short ? absl::ResourceExhaustedError(
                          rule + " while others wait for room, it did not, retry later")
                    : absl::DeadlineExceededError(rule + ", it did not");
  }
  if (arrived < 0) return absl::OkStatus();
  if (entry->window_bytes < 0) {
    entry->window_start = now;
    entry->window_bytes = arrived;
  }
  const double elapsed = Seconds(now - entry->window_start);
  if (elapsed < Seconds(kWindow)) return absl::OkStatus();
  const double rate = static_cast<double>(arrived - entry->window_bytes) / elapsed;
  entry->window_start = now;
  entry->window_bytes = arrived;
  if (!is_short || rate >= static_cast<double>(kLeastRate)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "request: its message must arrive at ", kLeastRate,
      " bytes/s while others wait for room, got ", static_cast<int64_t>(rate), ", retry later"));
}

void Intake::Distrust(Client* client, TimePoint now) {
  if (!client->gave_up.has_value()) {
    if (distrusted_clients_ >= kMostDistrusted) return;
    distrusted_clients_ += 1;
  }
  client->gave_up = now;
}

void Intake::ForgetClients(TimePoint now) {
  if (distrusted_clients_ == 0) return;
  for (auto it = clients_.begin(); it != clients_.end();) {
    Client& client = it->second;
    const bool is_over = client.gave_up.has_value() && now - *client.gave_up > kDistrust;
    if (is_over) {
      client.gave_up.reset();
      distrusted_clients_ -= 1;
    }
    it = is_over && client.entries == 0 ? clients_.erase(it) : std::next(it);
  }
}

void Intake::FindShortage(TimePoint now) {
  if (is_short_of_work_.exchange(false)) {
    last_short_ = now;
    trusted_short_ = {now, ""};
  }
  const auto trusted = std::find_if(waiting_.begin(), waiting_.end(),
                                    [](const Entry* entry) { return !IsDistrusted(*entry); });
  if (trusted == waiting_.end()) return;
  const Client* const client = (*trusted)->client;
  trusted_short_ = {now, client == nullptr ? "" : client->name};
}

void Intake::Sweep() {
  const TimePoint now = clock_->Now();
  ForgetClients(now);
  FindShortage(now);
  const bool is_short =
      !waiting_.empty() || (last_short_.has_value() && now - *last_short_ < kShortage);
  is_short_.store(is_short, std::memory_order_relaxed);
  std::vector<std::pair<Reader*, absl::Status>> overdue;
  for (auto& [reader, entry] : entries_) {
    if (!entry.is_reading) continue;
    absl::Status status = CheckProgress(&entry, now, is_short);
    if (!status.ok()) overdue.emplace_back(reader, std::move(status));
  }
  for (const auto& [reader, status] : overdue) {
    // OnOverdue of another reader may have removed it.
    const auto found = entries_.find(reader);
    if (found == entries_.end()) continue;
    if (found->second.client != nullptr) Distrust(found->second.client, now);
    Remove(found);
    reader->OnOverdue(status);
  }
  // Clients may have become trusted again.
  if (!waiting_.empty()) Serve();
}

absl::StatusOr<int64_t> ParseMessageBytes(absl::string_view text, int64_t max_message_bytes) {
  int64_t bytes = 0;
  const bool is_number =
      !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!is_number || (text.size() <= 18 && !absl::SimpleAtoi(text, &bytes))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metadata: attnd-message-bytes must be a decimal number >= 0, got ", Quoted(text)));
  }
  if (text.size() > 18) return TooLarge(Quoted(text), max_message_bytes);
  ATTND_RETURN_IF_ERROR(CheckMessageSize(bytes, max_message_bytes));
  return bytes;
}

}  // namespace attnd
