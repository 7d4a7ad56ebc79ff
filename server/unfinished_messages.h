// The gRPC messages of one connection that have begun to arrive and have not ended.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kernels/core/mutex.h"

namespace attnd {

// By stream; without those of streams that either side has ended. gRPC holds the bytes that have
// arrived of them without reporting them.
//
// A connection without a message that is larger than a frame takes no lock. Bounded: the latest
// kMostMessages. Half a KiB.
class UnfinishedMessages {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Bytes that are free: the window of an unread stream holds as many.
  static constexpr int64_t kFreeBytes = 64 << 10;

  // The state of a message: its prefix of five bytes as far as it has arrived, then its bytes.
  struct Message {
    int64_t prefix = 0;
    int prefix_size = 0;
    int64_t bytes = 0, left = 0;
    bool is_between() const { return prefix_size == 0 && left == 0; }
    int64_t arrived() const { return left > 0 ? bytes - left : 0; }
  };

  // --- the thread that reads ---
  // The client opens a stream; stream numbers increase.
  void Open(uint32_t stream);
  Message Find(uint32_t stream) const;  // is_between() if the stream has none
  // `is_new`: not the message that was last put for the stream.
  void Put(uint32_t stream, const Message& message, bool is_new);
  void Erase(uint32_t stream);

  // --- the thread that sends ---
  // The server has ended the stream. Later messages on it are ignored.
  void End(uint32_t stream);

  // --- any thread ---
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // The sizes of the messages whose prefix has arrived.
  std::vector<int64_t> Sizes(uint32_t except_stream) const;
  // The arrived bytes of each message of which more than kFreeBytes had arrived at a call of
  // Overdue at least `patience` ago. To be called about once a second.
  std::vector<int64_t> Overdue(TimePoint now, std::chrono::seconds patience);

 private:
  struct Entry {
    Message message;
    std::optional<TimePoint> seen;  // when Overdue first saw more than kFreeBytes
  };

  // The latest streams, of which it is known whether the server has ended them.
  static constexpr uint32_t kKnownStreams = 4096, kBits = 64;
  static constexpr size_t kMostMessages = 2048;

  // Streams of a client have odd numbers.
  static uint32_t PlaceOf(uint32_t stream) { return stream / 2 % kKnownStreams; }
  bool IsKnown(uint32_t stream) const;
  bool IsEnded(uint32_t stream) const;

  std::atomic<uint32_t> last_stream_{0};
  std::array<std::atomic<uint64_t>, kKnownStreams / kBits> ended_{};
  std::atomic<size_t> count_{0};  // of entries_; written under mu_
  mutable Mutex mu_;
  std::map<uint32_t, Entry> entries_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
