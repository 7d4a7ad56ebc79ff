// How the client connects.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "attnd/client.h"

namespace attnd::client {

// UseLargeReads was called.
inline std::atomic<bool> has_large_reads = false;

// Connects when the first call needs it. Errors: INVALID_ARGUMENT for options, NOT_FOUND for a PEM
// file that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options);

constexpr char kService[] = "attn.v1.AttentionService";

}  // namespace attnd::client
