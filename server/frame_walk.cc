#include "server/frame_walk.h"

#include <algorithm>
#include <utility>

namespace attnd {
namespace {

constexpr int kPrefixBytes = 5;

}  // namespace

absl::string_view FrameWalk::Take(std::span<const std::byte> bytes) {
  const auto skipped = static_cast<size_t>(std::min<int64_t>(skip_, std::ssize(bytes)));
  skip_ -= static_cast<int64_t>(skipped);
  bytes = bytes.subspan(skipped);
  while (!bytes.empty()) {
    if (!is_in_frame_) {
      const size_t more = std::min(head_.bytes.size() - head_size_, bytes.size());
      for (size_t i = 0; i < more; ++i) head_.bytes[head_size_++] = static_cast<uint8_t>(bytes[i]);
      bytes = bytes.subspan(more);
      if (head_size_ < head_.bytes.size()) break;
      head_size_ = 0;
      is_in_frame_ = true;
      if (const absl::string_view reason = BeginFrame(); !reason.empty()) return reason;
    }
    const auto part = static_cast<size_t>(std::min<int64_t>(frame_left_, std::ssize(bytes)));
    if (head_.type() == kDataFrame) TakeData(bytes.first(part));
    frame_left_ -= static_cast<int64_t>(part);
    bytes = bytes.subspan(part);
    if (frame_left_ == 0) EndFrame();
  }
  // Kept now, since the rest of a large frame may never come.
  const bool is_in_data = is_in_frame_ && head_.type() == kDataFrame;
  if (is_in_data && current_.arrived() > UnfinishedMessages::kFreeBytes) Keep();
  return {};
}

void FrameWalk::CountFrame(uint32_t stream) {
  switch (head_.type()) {
    case kDataFrame:
      if (frame_left_ < kSmallDataBytes) frames_.small += 1;
      break;
    case kResetFrame:
    case kPingFrame:
    case kWindowUpdateFrame:
      frames_.small += 1;
      break;
    case kContinuationFrame:  // counted with its block
      break;
    case kHeadersFrame:
      if (stream > last_stream_) break;
      [[fallthrough]];
    default:
      frames_.control += 1 + frame_left_ / kControlBytes;
  }
}

absl::string_view FrameWalk::BeginFrame() {
  frame_left_ = head_.payload_bytes();
  const uint32_t stream = head_.stream();
  CountFrame(stream);
  switch (head_.type()) {
    case kHeadersFrame:
      is_in_block_ = false;
      if (head_.has(kEndStream)) messages_.Erase(stream);
      [[fallthrough]];
    case kContinuationFrame:
      return BeginBlock(frame_left_, stream, head_.has(kEndHeaders));
    case kResetFrame:
      messages_.Erase(stream);
      break;
    case kDataFrame:
      current_ = messages_.Find(stream);
      current_stream_ = stream;
      has_begun_ = false;
      break;
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
    messages_.Open(stream);
  }
  return {};
}

void FrameWalk::TakeData(std::span<const std::byte> bytes) {
  UnfinishedMessages::Message& message = current_;
  while (!bytes.empty()) {
    if (message.left > 0) {
      const int64_t part = std::min<int64_t>(message.left, std::ssize(bytes));
      message.left -= part;
      bytes = bytes.subspan(static_cast<size_t>(part));
    } else {
      message.prefix = message.prefix << 8 | static_cast<uint8_t>(bytes.front());
      bytes = bytes.subspan(1);
      if (++message.prefix_size < kPrefixBytes) continue;
      // The first byte of the prefix says whether the message is compressed.
      message.bytes = message.left = message.prefix & 0xffffffff;
      message.prefix = message.prefix_size = 0;
      has_begun_ = true;
    }
  }
}

void FrameWalk::EndFrame() {
  is_in_frame_ = false;
  if (head_.type() != kDataFrame) return;
  if (current_.is_between() || head_.has(kEndStream)) {
    messages_.Erase(current_stream_);
    current_.left = 0;
  } else {
    Keep();
  }
}

void FrameWalk::Keep() {
  messages_.Put(current_stream_, current_, std::exchange(has_begun_, false));
}

}  // namespace attnd
