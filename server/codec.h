// The wire format of tensor messages without copies of their payloads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/task.h"

namespace google::protobuf {
class Message;
}

namespace attnd {

// Every tensor message keeps its payloads in one top-level field `repeated bytes raw = 15`.
constexpr int kRawField = 15;

// A message given as the slices it was received in: takes the payloads out as spans over those
// slices (no byte of them is copied) and hands the rest verbatim to protobuf. Accepts exactly what
// protobuf's parser accepts for the whole message: any field order, varints across slice ends,
// groups, unknown fields (kept, so that validation can refuse them).
// Errors: INVALID_ARGUMENT "message: ..." for what protobuf would refuse.
absl::Status SplitMessage(std::span<const std::span<const std::byte>> slices,
                          google::protobuf::Message* head, std::vector<Spans>* raw);

int64_t SizeOf(const Spans& spans);

// The bytes in front of a payload of `size` bytes in field kRawField: tag and length.
std::string RawFieldHeader(int64_t size);

}  // namespace attnd
