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

// Parses the frames from the first byte of a connection on, in pieces of any size, and provides
// what gRPC 1.51 bounds too late or not at all:
// - gRPC parses a header block again from its start with every frame and piece that continues it:
//   quadratic in the bytes sent. Here a block has at most kMostBlockBytes in kMostBlockFrames.
// - gRPC enforces the limit of concurrent streams only after the client has acknowledged it:
//   streams() counts them, so that the caller can enforce a limit.
// - gRPC makes room for a message of any size that is read: message_bytes() is the size of the one
//   that is arriving.
// - gRPC accepts any number of frames that carry nothing: frames() counts them.
// - gRPC holds unfinished messages without reporting them: messages() lists them.
//
// All other errors in the frames are left to gRPC. Cost: the head of each frame is parsed; a
// message that fits one frame allocates nothing. Not thread safe, except messages().
class FrameWalk {
 public:
  static constexpr int64_t kMostBlockBytes = 64 << 10;
  static constexpr int kMostBlockFrames = 16;
  static constexpr int64_t kSmallDataBytes = 256;
  static constexpr int64_t kControlBytes = 128;  // ten settings have 60

  // Parses the next bytes. Returns an error text, after which it must not be called again, or an
  // empty one.
  absl::string_view Take(std::span<const std::byte> bytes);

  int64_t streams() const { return streams_; }           // that the client has opened so far
  const FrameCounts& frames() const { return frames_; }  // so far
  // Size of the gRPC message that the last data frame belongs to; 0: it has ended.
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

  bool is_in_block_ = false;  // of headers, which continues
  int64_t block_bytes_ = 0;
  int block_frames_ = 0;

  FrameCounts frames_;
  uint32_t last_stream_ = 0;
  int64_t streams_ = 0;

  UnfinishedMessages messages_;  // those that are larger than a frame
  uint32_t current_stream_ = 0;
  UnfinishedMessages::Message current_;  // of the last data frame
  bool has_begun_ = false;               // a message, in that frame
};

}  // namespace attnd
