// How the client connects.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
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

// Waiting times between attempts: kFirstBackoff, doubled each time up to kMostBackoff, each times a
// random factor of 1 +- kJitter. For unary calls gRPC does it, with the same figures.
constexpr std::chrono::milliseconds kFirstBackoff{100};
constexpr std::chrono::milliseconds kMostBackoff{2000};
constexpr double kJitter = 0.2;
// After attempt number `attempt`, 1 for the first. `random` is uniform in [0, 1).
std::chrono::nanoseconds BackoffAfter(int attempt, double random);

}  // namespace attnd::client
