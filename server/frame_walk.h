// The frames of HTTP/2 that one client sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/frame_allowance.h"
#include "server/http2_frames.h"
#include "server/unfinished_messages.h"

namespace attnd {

// Follows the frames from the first byte of a connection on, in whatever pieces they come, and
// knows what gRPC 1.51 bounds too late or not at all:
// - It parses a header block again from its start with every frame and piece that continues it:
//   quadratic in what is sent. A block here has at most kMostBlockBytes in kMostBlockFrames.
// - It begins to keep the limit of concurrent streams when the client acknowledges it: streams() is
//   for whoever keeps one.
// - It makes room for a message of any size that is read: message_bytes() says what is on its way.
// - It takes any number of frames that carry nothing: frames() counts them.
// - It holds what has arrived of a message and tells nobody: messages() has those.
//
// Whatever else is wrong with the frames is left to gRPC. Cost: the head of each frame is looked
// at; a message that fits one frame allocates nothing. Not thread safe, but for messages().
class FrameWalk {
 public:
  static constexpr int64_t kMostBlockBytes = 64 << 10;
  static constexpr int kMostBlockFrames = 16;
  static constexpr int64_t kSmallDataBytes = 256;
  static constexpr int64_t kControlBytes = 128;  // ten settings have 60

  // The next bytes. Empty, or what is wrong; then it must not be called again.
  absl::string_view Take(std::span<const std::byte> bytes);

  int64_t streams() const { return streams_; }           // that the client has opened so far
  const FrameCounts& frames() const { return frames_; }  // so far
  // Size of the gRPC message that the last data frame belongs to; 0: that has ended.
  int64_t message_bytes() const { return current_.left > 0 ? current_.bytes : 0; }
  // The sizes of the messages of other streams that have begun.
  std::vector<int64_t> other_messages() const { return messages_.Sizes(current_stream_); }
  UnfinishedMessages& messages() { return messages_; }

 private:
  void CountFrame(uint32_t stream);
  absl::string_view BeginFrame();
  absl::string_view BeginBlock(int64_t bytes, uint32_t stream, bool is_whole);
  void TakeData(std::span<const std::byte> bytes);
  void EndFrame();
  void Keep();

  int64_t skip_ = 24;  // of the preface, which gRPC checks
  FrameHead head_;
  size_t head_size_ = 0;
  int64_t frame_left_ = 0;
  bool is_in_frame_ = false;

  bool is_in_block_ = false;  // of headers, which go on
  int64_t block_bytes_ = 0;
  int block_frames_ = 0;

  FrameCounts frames_;
  uint32_t last_stream_ = 0;
  int64_t streams_ = 0;

  UnfinishedMessages messages_;  // that are larger than a frame
  uint32_t current_stream_ = 0;
  UnfinishedMessages::Message current_;  // of the last data frame
  bool has_begun_ = false;               // in that frame
};

}  // namespace attnd
