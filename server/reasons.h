// Reasons of a refusal, as they are sent to the client.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/core/status.h"

namespace google::protobuf {
class Message;
}

namespace attnd {

// The reasons of both, one a line. INVALID_ARGUMENT takes precedence, else the first code that is
// not OK.
absl::Status MergeReasons(const absl::Status& first, const absl::Status& second);

// A status travels in a trailer of 8 KiB in which the end of a line takes three bytes.
constexpr size_t kMaxReasonBytes = 4000;

// The lines that fit, and "and 17 more reasons".
absl::Status FitTrailer(const absl::Status& status);

// "<subject> must be those of attn.v1.Tensor, got field 7" for each field of `message` itself that
// its type does not have.
void RefuseUnknownFields(const google::protobuf::Message& message, const std::string& subject,
                         Reasons* reasons);

// Marks an error as permanent although clients retry its code (for example RESOURCE_EXHAUSTED for a
// request above the whole budget).
absl::Status Permanent(absl::Status status);
bool IsPermanent(const absl::Status& status);

// Text from a client for use in a reason: in quotes, escaped, shortened.
std::string Quoted(absl::string_view text);

}  // namespace attnd
