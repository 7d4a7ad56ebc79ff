#include "server/flood_watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "server/connections.h"

namespace attnd {

FloodWatch::FloodWatch(const Connection* connection, const Options* options)
    : connection_(connection), options_(options) {}

bool FloodWatch::IsFlooding(const Connection& connection, int64_t lowest) {
  return connection.Balance() - lowest > kSlackBytes + connection.expected.load();
}

bool FloodWatch::OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept {
  try {
    const absl::string_view reason = Check(pieces, bytes);
    if (reason.empty()) return true;
    is_cut_off_ = true;
    options_->cut_off(*connection_, reason);
  } catch (const std::exception&) {
    // What is not looked at does not go on.
    is_cut_off_ = true;
  }
  return false;
}

// What is wrong, or nothing.
absl::string_view FloodWatch::Check(std::span<const iovec> pieces, int64_t bytes) {
  int64_t left = bytes;
  for (const iovec& piece : pieces) {
    const auto part =
        static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(piece.iov_len)));
    const absl::string_view reason =
        frames_.Take({static_cast<const std::byte*>(piece.iov_base), part});
    if (!reason.empty()) return reason;
    left -= static_cast<int64_t>(part);
    if (left == 0) break;
  }
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
                     .message_bytes = frames_.message_bytes()});
  }
  return {};
}

int64_t FloodWatch::WithoutCall() const {
  return frames_.streams() - forgiven_ - connection_->calls.load(std::memory_order_relaxed);
}

bool FloodWatch::HasTooManyStreams() {
  const int64_t without_call = WithoutCall();
  const int64_t open =
      frames_.streams() - forgiven_ - connection_->ended.load(std::memory_order_relaxed);
  // A client opens the next stream before the end of the last one's call is handled here.
  const int64_t excess =
      std::max(without_call - options_->most_streams, open - 2 * options_->most_streams);
  return excess > 0 && !Forgives(excess);
}

bool FloodWatch::Forgives(int64_t streams) {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> elapsed = now - std::exchange(forgave_at_, now);
  can_forgive_ =
      std::min<double>(can_forgive_ + elapsed.count() * kForgivenStreams, kForgivenStreams);
  if (static_cast<double>(streams) > can_forgive_) return false;
  can_forgive_ -= static_cast<double>(streams);
  forgiven_ += streams;
  return true;
}

}  // namespace attnd
