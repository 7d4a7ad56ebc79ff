#include "server/run_rules.h"

#include "proto/wire/bytes.h"
#include "server/reasons.h"

namespace attnd {
namespace {

using attn::v1::RunReply;
using attn::v1::RunRequest;

constexpr size_t kMaxIdBytes = 256;

}  // namespace

absl::Status CheckRun(const RunRequest& request, bool has_payloads) {
  Reasons reasons("run");
  if (request.id().empty()) reasons.Invalid("id is required, got none");
  if (request.id().size() > kMaxIdBytes) {
    reasons.Invalid("id must have at most ", kMaxIdBytes, " bytes, got ", request.id().size());
  }
  const auto check_inner = [&](const char* name, const auto& inner) {
    if (!inner.id().empty()) {
      reasons.Invalid(name, ".id must be empty, got ", Quoted(inner.id()));
    }
    if (inner.raw_size() > 0) {
      reasons.Invalid(name, ".raw must be empty, payloads are those of RunRequest, got ",
                      inner.raw_size());
    }
  };
  switch (request.content_case()) {
    case RunRequest::kForward:
      check_inner("forward", request.forward());
      break;
    case RunRequest::kBackward:
      check_inner("backward", request.backward());
      break;
    case RunRequest::kNextMessageBytes:
      if (request.next_message_bytes() <= 0) {
        reasons.Invalid("next_message_bytes must be > 0, got ", request.next_message_bytes());
      }
      if (has_payloads) reasons.Invalid("raw must be empty in an announcement");
      break;
    case RunRequest::CONTENT_NOT_SET:
      reasons.Invalid("forward, backward or next_message_bytes is required, got none");
      break;
  }
  RefuseUnknownFields(request, "fields", &reasons);
  return reasons.status();
}

grpc::ByteBuffer ErrorReply(const std::string& id, const absl::Status& status) {
  RunReply reply;
  reply.set_id(id);
  reply.mutable_error()->set_code(status.raw_code());
  reply.mutable_error()->set_message(std::string(status.message()));
  reply.mutable_error()->set_permanent(IsPermanent(status) || absl::IsInvalidArgument(status) ||
                                       absl::IsUnimplemented(status));
  return Serialize(reply);
}

}  // namespace attnd
