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

// By stream; those of streams that either side has ended are none. gRPC holds what has arrived of
// them and tells nobody.
//
// A connection without a message that is larger than a frame takes no lock. Bounded: the latest
// kMostMessages. Half a KiB.
class UnfinishedMessages {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // What an unread stream may bring, too, in a window.
  static constexpr int64_t kFreeBytes = 64 << 10;

  // Its prefix of five bytes, then what is left.
  struct Message {
    int64_t prefix = 0;
    int prefix_size = 0;
    int64_t bytes = 0, left = 0;
    bool is_between() const { return prefix_size == 0 && left == 0; }
    int64_t arrived() const { return left > 0 ? bytes - left : 0; }
  };

  // --- the thread that reads ---
  // The client opens a stream; their numbers rise.
  void Open(uint32_t stream);
  Message Find(uint32_t stream) const;  // between two messages: none is there
  // `is_new`: another message than the one that was put last for the stream.
  void Put(uint32_t stream, const Message& message, bool is_new);
  void Erase(uint32_t stream);

  // --- the thread that sends ---
  // The server has ended the stream. What comes on it afterwards is not kept.
  void End(uint32_t stream);

  // --- any thread ---
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // The sizes of those whose prefix is here.
  std::vector<int64_t> Sizes(uint32_t except_stream) const;
  // How much has arrived of each message that has more than kFreeBytes here, and had when this was
  // first asked `patience` ago. Ask about once a second.
  std::vector<int64_t> Overdue(TimePoint now, std::chrono::seconds patience);

 private:
  struct Entry {
    Message message;
    std::optional<TimePoint> seen;  // with more than kFreeBytes, by Overdue
  };

  // Of so many streams it is known whether the server has ended them: the latest.
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
