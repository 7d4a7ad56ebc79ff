// The wire format of tensor messages without copies of their payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace attnd {

// Pieces of one payload in order, as they lie in the received slices; any alignment.
using Spans = std::vector<std::span<const std::byte>>;

// Every tensor message keeps its payloads in one top-level field `repeated bytes raw = 15`.
constexpr int kRawField = 15;

// Limits of a message beside its payloads. Protobuf takes up to fifty bytes of memory for one byte
// of the wire (empty tensors, say), so without them a message could take many times its size.
constexpr size_t kMaxHeadBytes = 256 << 10;
constexpr size_t kMaxRawEntries = 1024;

// A message given as the slices it was received in: takes the payloads out as spans over those
// slices (no byte of them is copied) and hands the rest verbatim to protobuf. Accepts exactly what
// protobuf's parser accepts for the whole message: any field order, varints across slice ends,
// groups, unknown fields (kept, so that validation can refuse them). Two exceptions: it holds the
// two limits above, and all payloads together may exceed 2 GiB. A message type without field `raw`
// is all head.
// Errors: INVALID_ARGUMENT "message: rule, got value"; OUT_OF_RANGE if the head has more than
// `most_head` bytes, which is found out before it is parsed; `head` and `raw` are then unspecified.
absl::Status SplitMessage(std::span<const std::span<const std::byte>> slices,
                          google::protobuf::Message* head, std::vector<Spans>* raw,
                          size_t most_head = kMaxHeadBytes);
// Heads up to this size are parsed in less than a millisecond for any content.
constexpr size_t kSmallHeadBytes = 16 << 10;

int64_t SizeOf(const Spans& spans);

// The bytes in front of a payload of `size` bytes in field kRawField: tag and length.
// REQUIRES: size is below 2 GiB, the most that protobuf reads back.
std::string RawFieldHeader(int64_t size);

// The same for any field of bytes, strings or messages. REQUIRES: field is in 1..15.
std::string FieldHeader(int field, int64_t size);

}  // namespace attnd
