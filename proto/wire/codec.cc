#include "proto/wire/codec.h"

#include <algorithm>
#include <cassert>
#include <climits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "kernels/core/status.h"

namespace attnd {
namespace {

using google::protobuf::FieldDescriptor;

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLength = 2,
  kGroupStart = 3,
  kGroupEnd = 4,
  kFixed32 = 5,
};

constexpr size_t kUsualHeadBytes = 512;
constexpr int kMaxTagBytes = 5;
constexpr int kMaxLengthBytes = 5;
constexpr int kMaxVarintBytes = 10;
// Protobuf refuses lengths that leave no room for the 16 bytes it may look ahead.
constexpr uint64_t kMaxLength = INT_MAX - 16;

// A read position in a list of slices.
class Cursor {
 public:
  explicit Cursor(std::span<const std::span<const std::byte>> slices) : slices_(slices) {
    SkipEmpty();
  }

  bool at_end() const { return slices_.empty(); }
  int64_t position() const { return position_; }

  // REQUIRES: not at_end().
  uint8_t ReadByte() {
    const auto byte = static_cast<uint8_t>(slices_[0][offset_]);
    Advance(1);
    return byte;
  }

  // Gives the next `size` bytes to `take`, one piece a slice. False: fewer are left.
  template <class Take>
  bool Read(uint64_t size, const Take& take) {
    while (size > 0 && !at_end()) {
      const size_t piece = std::min<uint64_t>(size, slices_[0].size() - offset_);
      take(slices_[0].subspan(offset_, piece));
      Advance(piece);
      size -= piece;
    }
    return size == 0;
  }

 private:
  void Advance(size_t bytes) {
    offset_ += bytes;
    position_ += static_cast<int64_t>(bytes);
    if (offset_ == slices_[0].size()) {
      slices_ = slices_.subspan(1);
      offset_ = 0;
      SkipEmpty();
    }
  }
  void SkipEmpty() {
    while (!slices_.empty() && slices_[0].empty()) slices_ = slices_.subspan(1);
  }

  std::span<const std::span<const std::byte>> slices_;
  size_t offset_ = 0;  // in slices_[0]
  int64_t position_ = 0;
};

// Walks the top level of a message, and the groups in it, whose ends must be found. Protobuf checks
// the head again; for payloads this check is the only one, and exact.
class Walker {
 public:
  Walker(absl::string_view message_name, std::span<const std::span<const std::byte>> slices,
         bool has_raw, std::vector<Spans>* raw, size_t most_head)
      : message_name_(message_name),
        cursor_(slices),
        has_raw_(has_raw),
        raw_(raw),
        most_head_(most_head) {
    head_.reserve(kUsualHeadBytes);
  }

  absl::Status Walk() {
    while (!cursor_.at_end()) {
      field_position_ = cursor_.position();
      ATTND_RETURN_IF_ERROR(Field());
    }
    return groups_.empty() ? absl::OkStatus() : Malformed("a group without end");
  }

  const std::string& head() const { return head_; }

 private:
  absl::Status Field() {
    const size_t head_before = head_.size();
    uint64_t tag = 0;
    if (!ReadVarint(kMaxTagBytes, &tag)) return Malformed("a tag that is cut off or too long");
    // Protobuf drops what the fifth byte has beyond 32 bits.
    const uint32_t number = static_cast<uint32_t>(tag) >> 3;
    if (number == 0) return Malformed("field number 0");
    uint64_t value = 0;
    switch (tag & 7) {
      case kVarint:
        if (ReadVarint(kMaxVarintBytes, &value)) return CheckHead();
        return Malformed("a varint that is cut off or too long");
      case kFixed64:
        return Keep(8);
      case kFixed32:
        return Keep(4);
      case kGroupStart:
        groups_.push_back(number);
        return CheckHead();
      case kGroupEnd:
        if (groups_.empty() || groups_.back() != number) return Malformed("a group's end alone");
        groups_.pop_back();
        return CheckHead();
      case kLength:
        if (!ReadVarint(kMaxLengthBytes, &value) || value > kMaxLength) {
          return Malformed("a length that is cut off or too large");
        }
        if (!has_raw_ || number != kRawField || !groups_.empty()) return Keep(value);
        head_.resize(head_before);
        return TakePayload(value);
      default:
        return Malformed("an unknown wire type");
    }
  }

  // Copies what it reads into the head.
  bool ReadVarint(int max_bytes, uint64_t* value) {
    for (int i = 0; i < max_bytes && !cursor_.at_end(); ++i) {
      const uint8_t byte = cursor_.ReadByte();
      head_.push_back(static_cast<char>(byte));
      *value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

  absl::Status Keep(uint64_t size) {
    if (size > kMaxHeadBytes) return HeadTooLong();
    if (size > most_head_) return absl::OutOfRangeError("message: a large head");
    const bool is_whole = cursor_.Read(size, [this](std::span<const std::byte> piece) {
      head_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return is_whole ? CheckHead() : Malformed("a field that is cut off");
  }

  absl::Status TakePayload(uint64_t size) {
    if (raw_->size() == kMaxRawEntries) {
      return absl::InvalidArgumentError(
          absl::StrCat("message: raw must have at most ", kMaxRawEntries, " entries, got more"));
    }
    Spans& payload = raw_->emplace_back();
    const bool is_whole = cursor_.Read(
        size, [&payload](std::span<const std::byte> piece) { payload.push_back(piece); });
    return is_whole ? absl::OkStatus() : Malformed("a field that is cut off");
  }

  absl::Status CheckHead() const {
    if (head_.size() > kMaxHeadBytes) return HeadTooLong();
    if (head_.size() > most_head_) return absl::OutOfRangeError("message: a large head");
    return absl::OkStatus();
  }
  static absl::Status HeadTooLong() {
    return absl::InvalidArgumentError(absl::StrCat("message: everything but raw must fit in ",
                                                   kMaxHeadBytes, " bytes, got more"));
  }
  absl::Status Malformed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("message: bytes must be a valid ", message_name_,
                                                   ", got ", what, " in the field at byte ",
                                                   field_position_));
  }

  const absl::string_view message_name_;
  Cursor cursor_;
  const bool has_raw_;
  std::vector<Spans>* const raw_;
  const size_t most_head_;
  std::string head_;
  std::vector<uint32_t> groups_;  // field numbers of the groups that are open
  int64_t field_position_ = 0;
};

bool HasRaw(const google::protobuf::Descriptor& message) {
  const FieldDescriptor* field = message.FindFieldByNumber(kRawField);
  return field != nullptr && field->is_repeated() && field->type() == FieldDescriptor::TYPE_BYTES;
}

}  // namespace

absl::Status SplitMessage(std::span<const std::span<const std::byte>> slices,
                          google::protobuf::Message* head, std::vector<Spans>* raw,
                          size_t most_head) {
  raw->clear();
  const google::protobuf::Descriptor& type = *head->GetDescriptor();
  Walker walker(type.full_name(), slices, HasRaw(type), raw, most_head);
  ATTND_RETURN_IF_ERROR(walker.Walk());
  if (!head->ParseFromString(walker.head())) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: bytes must be a valid ", type.full_name(),
                     ", got a malformed field inside a field, or text that is not UTF-8"));
  }
  return absl::OkStatus();
}

int64_t SizeOf(const Spans& spans) {
  int64_t size = 0;
  for (const auto& span : spans) size += static_cast<int64_t>(span.size());
  return size;
}

std::string RawFieldHeader(int64_t size) { return FieldHeader(kRawField, size); }

std::string FieldHeader(int field, int64_t size) {
  assert(field > 0 && field < 16);
  assert(size >= 0 && size <= static_cast<int64_t>(kMaxLength));
  std::string header(1, static_cast<char>(field << 3 | kLength));
  auto left = static_cast<uint64_t>(size);
  for (; left >= 0x80; left >>= 7) header.push_back(static_cast<char>(left | 0x80));
  header.push_back(static_cast<char>(left));
  return header;
}

}  // namespace attnd
