// Checks of single messages of Run, and its error replies.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"
#include "attn/v1/attention.pb.h"

namespace attnd {

// Checks the rules of RunRequest that need no state of the stream.
absl::Status CheckRun(const attn::v1::RunRequest& request, bool has_payloads);

// The reply to a refused or failed request.
grpc::ByteBuffer ErrorReply(const std::string& id, const absl::Status& status);

}  // namespace attnd
