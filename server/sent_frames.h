// The frames of HTTP/2 that are sent to one client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/http2_frames.h"
#include "server/unfinished_messages.h"

namespace attnd {

// Follows them from the first byte on, in whatever pieces they leave, to know which streams the
// server ends: a client does not repeat that, whose message it may have cut off. Cost: the head of
// each frame is looked at. Not thread safe.
class SentFrames {
 public:
  // The next bytes. Tells `messages` of the streams that end with them.
  void Take(std::span<const std::byte> bytes, UnfinishedMessages* messages);

 private:
  FrameHead head_;
  size_t head_size_ = 0;
  int64_t frame_left_ = 0;
};

}  // namespace attnd
