// The frames of HTTP/2 that are sent to one client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/http2_frames.h"
#include "server/unfinished_messages.h"

namespace attnd {

// Parses the frames from the first byte on, in pieces of any size, to find the streams that the
// server ends: a client whose message is cut off by that need not end its stream, too. Cost: the
// head of each frame is parsed. Not thread safe.
class SentFrames {
 public:
  // Parses the next bytes. Calls End of `messages` for the streams that they end.
  void Take(std::span<const std::byte> bytes, UnfinishedMessages* messages);

 private:
  FrameHead head_;
  size_t head_size_ = 0;
  int64_t frame_left_ = 0;
};

}  // namespace attnd
