// Reasons of a refusal on their way to the client.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/core/status.h"

namespace google::protobuf {
class Message;
}

namespace attnd {

// The reasons of both, one a line. INVALID_ARGUMENT wins, else the first code that is not OK.
absl::Status MergeReasons(const absl::Status& first, const absl::Status& second);

// A status travels in a trailer of 8 KiB in which the end of a line takes three bytes.
constexpr size_t kMaxReasonBytes = 4000;

// The lines that fit, and "and 17 more reasons".
absl::Status FitTrailer(const absl::Status& status);

// "<subject> must be those of attn.v1.Tensor, got field 7" for each field of `message` itself that
// its type does not have.
void RefuseUnknownFields(const google::protobuf::Message& message, const std::string& subject,
                         Reasons* reasons);

// Marks an error that retrying cannot mend although its code says otherwise (RESOURCE_EXHAUSTED for
// a request above the whole budget, say).
absl::Status Permanent(absl::Status status);
bool IsPermanent(const absl::Status& status);

// What a client sent, as it may stand in a reason: in quotes, escaped, shortened.
std::string Quoted(absl::string_view text);

}  // namespace attnd
