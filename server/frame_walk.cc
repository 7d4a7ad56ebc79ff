#include "server/frame_walk.h"

#include <algorithm>

namespace attnd {
namespace {

// RFC 9113.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9
};
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;
constexpr int kPrefixBytes = 5;
// Streams that were refused in the middle of a message leave it behind: the oldest go.
constexpr size_t kMostMessages = 2048;

}  // namespace

absl::string_view FrameWalk::Take(std::span<const std::byte> bytes) {
  const auto skipped = static_cast<size_t>(std::min<int64_t>(skip_, std::ssize(bytes)));
  skip_ -= static_cast<int64_t>(skipped);
  bytes = bytes.subspan(skipped);
  while (!bytes.empty()) {
    if (!is_in_frame_) {
      const size_t more = std::min(head_.size() - head_size_, bytes.size());
      for (size_t i = 0; i < more; ++i) head_[head_size_++] = static_cast<uint8_t>(bytes[i]);
      bytes = bytes.subspan(more);
      if (head_size_ < head_.size()) break;
      head_size_ = 0;
      is_in_frame_ = true;
      if (const absl::string_view reason = BeginFrame(); !reason.empty()) return reason;
    }
    const auto part = static_cast<size_t>(std::min<int64_t>(frame_left_, std::ssize(bytes)));
    if (head_[3] == kData) TakeData(bytes.first(part));
    frame_left_ -= static_cast<int64_t>(part);
    bytes = bytes.subspan(part);
    if (frame_left_ == 0) EndFrame();
  }
  return {};
}

std::vector<int64_t> FrameWalk::other_messages() const {
  std::vector<int64_t> sizes;
  for (const auto& [stream, message] : messages_) {
    if (stream != current_stream_ && message.left > 0) sizes.push_back(message.bytes);
  }
  return sizes;
}

void FrameWalk::CountFrame(uint32_t stream) {
  switch (head_[3]) {
    case kData:
      if (frame_left_ < kSmallDataBytes) frames_.small += 1;
      break;
    case kReset:
    case kPing:
    case kWindowUpdate:
      frames_.small += 1;
      break;
    case kContinuation:  // bounded with its block
      break;
    case kHeaders:
      if (stream > last_stream_) break;
      [[fallthrough]];
    default:
      frames_.control += 1 + frame_left_ / kControlBytes;
  }
}

absl::string_view FrameWalk::BeginFrame() {
  frame_left_ = head_[0] << 16 | head_[1] << 8 | head_[2];
  const uint32_t stream =
      static_cast<uint32_t>(head_[5] & 0x7f) << 24 | head_[6] << 16 | head_[7] << 8 | head_[8];
  CountFrame(stream);
  switch (head_[3]) {
    case kHeaders:
      is_in_block_ = false;
      [[fallthrough]];
    case kContinuation:
      return BeginBlock(frame_left_, stream, (head_[4] & kEndHeaders) != 0);
    case kReset:
      messages_.erase(stream);
      break;
    case kData: {
      const auto found = messages_.find(stream);
      current_ = found == messages_.end() ? Message{} : found->second;
      current_stream_ = stream;
      break;
    }
    default:
      break;
  }
  return {};
}

absl::string_view FrameWalk::BeginBlock(int64_t bytes, uint32_t stream, bool is_whole) {
  if (!is_in_block_) block_bytes_ = block_frames_ = 0;
  is_in_block_ = !is_whole;
  block_bytes_ += bytes;
  block_frames_ += 1;
  if (block_bytes_ > kMostBlockBytes) return "a header block of more than 64 KiB";
  if (block_frames_ > kMostBlockFrames) return "a header block in more than 16 frames";
  if (stream > last_stream_) {
    last_stream_ = stream;
    streams_ += 1;
  }
  return {};
}

void FrameWalk::TakeData(std::span<const std::byte> bytes) {
  Message& message = current_;
  while (!bytes.empty()) {
    if (message.left > 0) {
      const int64_t part = std::min<int64_t>(message.left, std::ssize(bytes));
      message.left -= part;
      bytes = bytes.subspan(static_cast<size_t>(part));
    } else {
      message.prefix = message.prefix << 8 | static_cast<uint8_t>(bytes.front());
      bytes = bytes.subspan(1);
      if (++message.prefix_size < kPrefixBytes) continue;
      // The first byte tells whether the message is compressed.
      message.bytes = message.left = message.prefix & 0xffffffff;
      message.prefix = message.prefix_size = 0;
    }
  }
}

void FrameWalk::EndFrame() {
  is_in_frame_ = false;
  if (head_[3] != kData) return;
  if (current_.is_between() || (head_[4] & kEndStream) != 0) {
    if (!messages_.empty()) messages_.erase(current_stream_);
    current_.left = 0;
  } else {
    messages_[current_stream_] = current_;
    if (messages_.size() > kMostMessages) messages_.erase(messages_.begin());
  }
}

}  // namespace attnd
