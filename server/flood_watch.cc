#include "server/flood_watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "server/connections.h"

namespace attnd {

bool ClientStreams::TryCountAsEnded(int64_t streams) {
  const MutexLock lock(&mu_);
  ended_.Refill(std::chrono::steady_clock::now());
  if (!ended_.TakeAll(static_cast<double>(streams))) return false;
  Add(-streams);
  return true;
}

FloodWatch::FloodWatch(const Connection* connection, const Options* options)
    : connection_(connection), options_(options) {}

FloodWatch::~FloodWatch() { connection_->streams->Add(-Open()); }

bool FloodWatch::IsFlooding(const Connection& connection, int64_t lowest) {
  return connection.Balance() - lowest > kSlackBytes + connection.expected.load();
}

std::vector<size_t> FloodWatch::Suspects(std::span<const int64_t> expected, const Flood& flood) {
  const std::vector<int64_t>& others = flood.other_messages;
  int64_t bytes = flood.message_bytes;
  if (bytes == 0 && !others.empty()) bytes = *std::max_element(others.begin(), others.end());
  std::vector<size_t> suspects;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= bytes) continue;
    // A declared size is exact, so the call whose size is that of another message has that one.
    const auto messages = std::count(others.begin(), others.end(), expected[i]);
    if (messages > 0 && messages >= std::count(expected.begin(), expected.end(), expected[i])) {
      continue;
    }
    suspects.push_back(i);
  }
  return suspects;
}

bool FloodWatch::OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept {
  try {
    const absl::string_view reason = Check(pieces, bytes);
    if (reason.empty()) return true;
    is_cut_off_ = true;
    options_->cut_off(*connection_, reason);
  } catch (const std::exception&) {
    // Bytes that could not be checked must not pass.
    is_cut_off_ = true;
  }
  return false;
}

void FloodWatch::OnSent(std::span<const iovec> pieces, int64_t bytes) noexcept {
  for (const iovec& piece : pieces) {
    if (bytes <= 0) return;
    const size_t part = std::min(static_cast<size_t>(bytes), piece.iov_len);
    sent_frames_.Take({static_cast<const std::byte*>(piece.iov_base), part}, &messages());
    bytes -= static_cast<int64_t>(part);
  }
}

// The error in the frames; empty: none.
absl::string_view FloodWatch::Walk(std::span<const iovec> pieces, int64_t bytes) {
  const FrameCounts frames = frames_.frames();
  const int64_t streams = frames_.streams(), all_bytes = bytes;
  absl::string_view reason;
  for (size_t i = 0; bytes > 0 && reason.empty(); ++i) {
    const int64_t part = std::min<int64_t>(bytes, static_cast<int64_t>(pieces[i].iov_len));
    reason = frames_.Take(
        {static_cast<const std::byte*>(pieces[i].iov_base), static_cast<size_t>(part)});
    bytes -= part;
  }
  const int64_t opened = frames_.streams() - streams;
  connection_->streams->Add(opened);
  if (reason.empty() && HasTooManyFrames(frames, opened, all_bytes)) {
    return "more frames that carry nothing than its calls need";
  }
  return reason;
}

bool FloodWatch::HasTooManyFrames(const FrameCounts& before, int64_t streams, int64_t received) {
  const FrameCounts& after = frames_.frames();
  const int64_t sent = connection_->sent.load(std::memory_order_relaxed);
  allowance_.Earn(streams, received + sent - std::exchange(sent_, sent));
  const FrameCounts more = allowance_.TakeEarned(
      {.control = after.control - before.control, .small = after.small - before.small});
  // The clock is read only if more than the earned frames is needed, so not for a small call.
  return !more.empty() &&
         !allowance_.Take(more, connection_->frames.get(), std::chrono::steady_clock::now());
}

// The reason to cut the connection off; empty: none.
absl::string_view FloodWatch::Check(std::span<const iovec> pieces, int64_t bytes) {
  if (const absl::string_view reason = Walk(pieces, bytes); !reason.empty()) return reason;
  if (HasTooManyStreams()) return "more streams at a time than the limit";
  const int64_t received =
      connection_->received.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  lowest_ = std::min(lowest_, connection_->Balance());
  if (connection_->is_suspected.load(std::memory_order_relaxed)) {
    const int64_t most = kMostAheadBytes + WithoutCall() * Connection::kSmallBytes;
    if (received - received_at_suspicion_ > most) return "more than calls expect";
  } else if (IsFlooding(*connection_, lowest_)) {
    received_at_suspicion_ = received;
    connection_->is_suspected.store(true, std::memory_order_relaxed);
    options_->found({.connection = connection_->shared_from_this(),
                     .lowest = std::exchange(lowest_, connection_->Balance()),
                     .message_bytes = frames_.message_bytes(),
                     .other_messages = frames_.other_messages()});
  }
  return {};
}

int64_t FloodWatch::WithoutCall() const {
  return frames_.streams() - counted_as_ended_ - connection_->calls.load(std::memory_order_relaxed);
}

int64_t FloodWatch::Open() const {
  return frames_.streams() - counted_as_ended_ - connection_->ended.load(std::memory_order_relaxed);
}

bool FloodWatch::HasTooManyStreams() {
  // A client opens the next stream before the end of the last one's call is handled here.
  const int64_t most = options_->most_streams;
  ClientStreams& all = *connection_->streams;
  int64_t excess = std::max(WithoutCall() - most, Open() - 2 * most);
  if (const int64_t of_all = all.open() - kFullConnections * most;
      of_all > 0 && all.IsMuch(Open())) {
    excess = std::max(excess, of_all);
  }
  if (excess <= 0) return false;
  if (!all.TryCountAsEnded(excess)) return true;
  counted_as_ended_ += excess;
  return false;
}

}  // namespace attnd
