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
  return std::min(2 * entry.message_bytes, budget_->total());
}

absl::Status Intake::Enter(Reader* reader, int64_t message_bytes, bool may_be_refused) {
  assert(entries_.find(reader) == entries_.end());
  Entry entry{.message_bytes = message_bytes, .is_unary = may_be_refused, .since = clock_->Now()};
  if (message_bytes == kUndeclared) {
    entry.is_declared = false;
    entry.message_bytes = options_.undeclared_bytes;
  } else if (message_bytes > budget_->total()) {
    return Permanent(absl::ResourceExhaustedError(
        absl::StrCat("request: needs more than ", message_bytes, " bytes, the server's budget is ",
                     budget_->total())));
  }
  const bool overtakes = waiting_.empty() || NeedOf(entry) == 0;
  Entry& kept = entries_[reader] = entry;
  if (overtakes && TryStart(reader, &kept)) return absl::OkStatus();
  last_short_ = kept.since;
  if (may_be_refused && waiting_unary_ >= options_.max_waiting) {
    entries_.erase(reader);
    return absl::ResourceExhaustedError(
        absl::StrCat("request: ", waiting_unary_, " requests wait to be read already, ",
                     budget_->total() - budget_->used(), " bytes of ", budget_->total(),
                     " are free, retry later"));
  }
  kept.is_waiting = true;
  waiting_.push_back(reader);
  waiting_unary_ += may_be_refused ? 1 : 0;
  waiting_count_.fetch_add(1, std::memory_order_relaxed);
  // Bytes may have come back since TryStart, before anybody was waiting for them.
  Serve();
  return absl::OkStatus();
}

// Moves it from waiting to reading if there is room, and tells it.
bool Intake::TryStart(Reader* reader, Entry* entry) {
  const int64_t need = NeedOf(*entry);
  if (!entry->is_declared && undeclared_reading_ + need > budget_->total() / 2) return false;
  std::optional<Budget::Share> share = budget_->TakeOrWait(need);
  if (!share.has_value()) return false;
  if (!entry->is_declared) undeclared_reading_ += need;
  if (std::exchange(entry->is_waiting, false)) {
    waiting_unary_ -= entry->is_unary ? 1 : 0;
    waiting_count_.fetch_sub(1, std::memory_order_relaxed);
  }
  entry->since = clock_->Now();
  reader->OnRoom(*std::move(share));
  return true;
}

void Intake::Serve() {
  // In order; only undeclared messages that found their half full are passed over.
  for (size_t i = 0; i < waiting_.size();) {
    Reader* const reader = waiting_[i];
    Entry& entry = entries_.at(reader);
    if (TryStart(reader, &entry)) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (entry.is_declared) {
      return;
    } else {
      ++i;
    }
  }
}

void Intake::Leave(Reader* reader) {
  const auto found = entries_.find(reader);
  if (found != entries_.end()) Remove(found);
}

void Intake::Remove(std::unordered_map<Reader*, Entry>::iterator it) {
  const auto [reader, entry] = *it;
  entries_.erase(it);
  if (entry.is_waiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), reader));
    waiting_unary_ -= entry.is_unary ? 1 : 0;
    waiting_count_.fetch_sub(1, std::memory_order_relaxed);
  } else if (!entry.is_declared) {
    undeclared_reading_ -= NeedOf(entry);
  }
  if (!waiting_.empty()) Serve();
}

void Intake::Sweep() {
  const TimePoint now = clock_->Now();
  const bool is_short =
      !waiting_.empty() || (last_short_.has_value() && now - *last_short_ < kShortage);
  std::vector<std::pair<Reader*, seconds>> overdue;
  for (const auto& [reader, entry] : entries_) {
    if (entry.is_waiting) continue;
    const seconds patience = Patience(entry.message_bytes, is_short);
    if (now - entry.since > patience) overdue.emplace_back(reader, patience);
  }
  for (const auto& [reader, patience] : overdue) {
    // One of the others may have made it leave.
    const auto found = entries_.find(reader);
    if (found == entries_.end()) continue;
    Remove(found);
    const std::string rule =
        absl::StrCat("request: its message must arrive within ", patience.count(), " s");
    reader->OnOverdue(is_short ? absl::ResourceExhaustedError(absl::StrCat(
                                     rule, " while others wait for room, it did not, retry later"))
                               : absl::DeadlineExceededError(rule + ", it did not"));
  }
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
