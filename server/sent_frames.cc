#include "server/sent_frames.h"

#include <algorithm>

namespace attnd {

void SentFrames::Take(std::span<const std::byte> bytes, UnfinishedMessages* messages) {
  while (true) {
    const auto part = static_cast<size_t>(std::min<int64_t>(frame_left_, std::ssize(bytes)));
    frame_left_ -= static_cast<int64_t>(part);
    bytes = bytes.subspan(part);
    if (bytes.empty()) return;
    head_.bytes[head_size_++] = static_cast<uint8_t>(bytes.front());
    bytes = bytes.subspan(1);
    if (head_size_ < head_.bytes.size()) continue;
    head_size_ = 0;
    frame_left_ = head_.payload_bytes();
    const bool has_data = head_.type() == kDataFrame || head_.type() == kHeadersFrame;
    if (head_.type() == kResetFrame || (has_data && head_.has(kEndStream))) {
      messages->End(head_.stream());
    }
  }
}

}  // namespace attnd
