// What a message of Run says by itself.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"
#include "attn/v1/attention.pb.h"

namespace attnd {

// The rules of RunRequest but for those that need the stream.
absl::Status CheckRun(const attn::v1::RunRequest& request, bool has_payloads);

// The reply to a request that was refused or failed.
grpc::ByteBuffer ErrorReply(const std::string& id, const absl::Status& status);

}  // namespace attnd
