#include "server/intake.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/reasons.h"

namespace attnd {
namespace {

using std::chrono::seconds;

// The part of the budget that stays free beside what is read.
constexpr int64_t kReservedPart = 16;
// All but this part of the budget is what one message is charged at most. Twice what stays free
// beside it, so that the largest is read while small requests are at work.
constexpr int64_t kSparedPart = 8;
// Clients that are remembered for messages that did not arrive.
constexpr size_t kMostDistrusted = 4096;
// More than a client has messages.
constexpr int kLastRank = 1 << 30;
// How long ago somebody may have found no room for room to count as short.
constexpr seconds kShortage{3};

seconds Patience(int64_t bytes, bool is_short) {
  return is_short ? seconds(5 + (bytes >> 22)) : seconds(30 + (bytes >> 20));
}

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
  if (arrival.message_bytes > budget_->total()) {
    return Permanent(absl::ResourceExhaustedError(
        absl::StrCat("request: needs more than ", arrival.message_bytes,
                     " bytes, the server's budget is ", budget_->total())));
  }
  Entry& entry = entries_[reader];
  entry.is_declared = arrival.message_bytes != kUndeclared;
  entry.message_bytes = entry.is_declared ? arrival.message_bytes : options_.undeclared_bytes;
  entry.is_unary = arrival.may_be_refused;
  const bool needs_room = NeedOf(entry) > 0;
  if (needs_room) entry.client = arrival.client;
  entry.since = clock_->Now();
  try {
    if ((!needs_room || waiting_.empty()) && TryStart(reader, &entry)) return absl::OkStatus();
    waiting_.push_back(reader);
  } catch (...) {
    entries_.erase(reader);
    throw;
  }
  entry.is_waiting = true;
  waiting_unary_ += entry.is_unary ? 1 : 0;
  waiting_count_.fetch_add(1, std::memory_order_relaxed);
  Serve();
  if (!entry.is_waiting) return absl::OkStatus();
  last_short_ = entry.since;
  if (!IsDistrusted(entry)) trusted_short_ = {entry.since, entry.client};
  return entry.is_unary && waiting_unary_ > options_.max_waiting ? MakePlace(reader)
                                                                 : absl::OkStatus();
}

// One place too few. It is the newcomer's, unless another client has more places than it.
absl::Status Intake::MakePlace(Reader* newcomer) {
  std::unordered_map<std::string, int> places;
  for (Reader* reader : waiting_) {
    const Entry& entry = entries_.at(reader);
    places[entry.client] += entry.is_unary ? 1 : 0;
  }
  Reader* victim = newcomer;
  int most = places[entries_.at(newcomer).client];
  for (Reader* reader : waiting_) {
    const Entry& entry = entries_.at(reader);
    const int count = places[entry.client];
    // The last of those with the most: the newest.
    if (!entry.is_unary || count < most || (count == most && victim == newcomer)) continue;
    most = count;
    victim = reader;
  }
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("request: ", waiting_unary_ - 1, " requests wait to be read already, ",
                   budget_->total() - budget_->used(), " bytes of ", budget_->total(),
                   " are free, retry later"));
  Remove(entries_.find(victim));
  if (victim == newcomer) return status;
  victim->OnOverdue(status);
  return absl::OkStatus();
}

// Undeclared messages share half of the budget, and so do those of distrusted clients.
bool Intake::FitsItsPart(const Entry& entry) const {
  const int64_t need = NeedOf(entry), part = budget_->total() / 2;
  if (!entry.is_declared && undeclared_reading_ + need > part) return false;
  if (!IsDistrusted(entry) || distrusted_reading_ + need <= part) return true;
  return !trusted_short_.has_value() || trusted_short_->client == entry.client ||
         clock_->Now() - trusted_short_->when >= kDistrust;
}

// Moves it to reading if there is room, and tells it.
bool Intake::TryStart(Reader* reader, Entry* entry) {
  const int64_t need = NeedOf(*entry);
  if (need > 0 && !FitsItsPart(*entry)) return false;
  // First what may find no memory.
  int* const reads = need > 0 ? &reads_by_client_[entry->client] : nullptr;
  std::optional<Budget::Share> share = budget_->TakeOrWait(need, budget_->total() / kReservedPart);
  if (!share.has_value()) {
    if (reads != nullptr && *reads == 0) reads_by_client_.erase(entry->client);
    return false;
  }
  if (!entry->is_declared) undeclared_reading_ += need;
  entry->is_distrusted = IsDistrusted(*entry);
  if (entry->is_distrusted) distrusted_reading_ += need;
  if (entry->is_waiting) StopWaiting(*entry);
  entry->is_waiting = false;
  entry->since = clock_->Now();
  if (reads != nullptr) *reads += 1;
  reader->OnRoom(*std::move(share));
  return true;
}

void Intake::StopWaiting(const Entry& entry) {
  waiting_unary_ -= entry.is_unary ? 1 : 0;
  waiting_count_.fetch_sub(1, std::memory_order_relaxed);
}

bool Intake::HasPrecedence(const Entry& entry) const {
  return entry.passed >= kMostPasses && !IsDistrusted(entry);
}

// Who waits, the first to be served first.
std::vector<Intake::Reader*> Intake::Turns() const {
  std::unordered_map<std::string, int> ahead = reads_by_client_;
  std::vector<std::pair<int, Reader*>> ranks;
  for (Reader* reader : waiting_) {
    const Entry& entry = entries_.at(reader);
    const int rank = ahead[entry.client]++;
    const int last = IsDistrusted(entry) ? kLastRank : 0;
    ranks.emplace_back(HasPrecedence(entry) ? -1 : last + rank, reader);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Reader*> turns;
  for (const auto& [rank, reader] : ranks) turns.push_back(reader);
  return turns;
}

void Intake::Serve() {
  // Those that found no room. Undeclared ones, whose half of the budget is full, are not in the
  // way.
  std::vector<Entry*> blocked;
  const auto may_pass = [&](const Entry& entry) {
    for (const Entry* one : blocked) {
      if (HasPrecedence(*one) || 4 * NeedOf(entry) > NeedOf(*one)) return false;
    }
    return true;
  };
  for (Reader* reader : Turns()) {
    Entry& entry = entries_.at(reader);
    if (may_pass(entry) && TryStart(reader, &entry)) {
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), reader));
      // The first one alone, so that those that wait gain precedence one after the other.
      if (!blocked.empty()) blocked.front()->passed += 1;
    } else if (entry.is_declared && !IsDistrusted(entry)) {
      blocked.push_back(&entry);
    }
  }
}

void Intake::Leave(Reader* reader) {
  const auto found = entries_.find(reader);
  if (found != entries_.end()) Remove(found);
}

void Intake::Remove(Entries::iterator it) {
  Reader* const reader = it->first;
  const Entry entry = std::move(it->second);
  entries_.erase(it);
  if (entry.is_waiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), reader));
    StopWaiting(entry);
  } else {
    if (!entry.is_declared) undeclared_reading_ -= NeedOf(entry);
    if (entry.is_distrusted) distrusted_reading_ -= NeedOf(entry);
    if (NeedOf(entry) > 0) {
      const auto reads = reads_by_client_.find(entry.client);
      if (--reads->second == 0) reads_by_client_.erase(reads);
    }
  }
  if (!waiting_.empty()) Serve();
}

// OK: it may go on.
absl::Status Intake::CheckProgress(const Reader& reader, Entry* entry, TimePoint now,
                                   bool is_short) {
  const int64_t arrived = NeedOf(*entry) > 0 ? reader.arrived_bytes() : -1;
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

void Intake::Sweep() {
  const TimePoint now = clock_->Now();
  std::erase_if(gave_up_, [now](const auto& one) { return now - one.second > kDistrust; });
  if (is_short_of_work_.exchange(false)) {
    last_short_ = now;
    trusted_short_ = {now, ""};
  }
  for (Reader* reader : waiting_) {
    const Entry& entry = entries_.at(reader);
    if (IsDistrusted(entry)) continue;
    trusted_short_ = {now, entry.client};
    break;
  }
  const bool is_short =
      !waiting_.empty() || (last_short_.has_value() && now - *last_short_ < kShortage);
  std::vector<std::pair<Reader*, absl::Status>> overdue;
  for (auto& [reader, entry] : entries_) {
    if (entry.is_waiting) continue;
    absl::Status status = CheckProgress(*reader, &entry, now, is_short);
    if (!status.ok()) overdue.emplace_back(reader, std::move(status));
  }
  for (const auto& [reader, status] : overdue) {
    // One of the others may have made it leave.
    const auto found = entries_.find(reader);
    if (found == entries_.end()) continue;
    if (NeedOf(found->second) > 0 && gave_up_.size() < kMostDistrusted) {
      gave_up_[found->second.client] = now;
    }
    Remove(found);
    reader->OnOverdue(status);
  }
  // Clients may be trusted again.
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
  if (text.size() > 18 || bytes > max_message_bytes) {
    // The words of gRPC's own check.
    return Permanent(absl::ResourceExhaustedError(absl::StrCat(
        "Received message larger than max (", Quoted(text), " vs. ", max_message_bytes, ")")));
  }
  return bytes;
}

}  // namespace attnd
