// Validates the envelope of a parsed message and converts it, with its payloads, for the engine.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attn/v1/attention.pb.h"
#include "kernels/engine/engine.h"
#include "server/reasons.h"
#include "server/task.h"

namespace attnd {

// A tensor holds at most this many bytes, also if it is only described.
constexpr int64_t kMaxTensorBytes = int64_t{1} << 40;
// A rank 1 int32 tensor (lengths, offsets): its values are copied for Plan.
constexpr int64_t kMaxIntegerElements = int64_t{1} << 20;
// The same for an estimate without the values.
constexpr int64_t kMaxAssumedElements = int64_t{1} << 16;
// Priorities are -kMaxPriority..kMaxPriority.
constexpr int kMaxPriority = 100;

struct DecodedRequest {
  std::string id;
  // The one that the caller named, or the only one; else empty until the plan decides.
  std::string device;
  int64_t devices = 1;  // that it may run on, with a plan for each
  int priority = 0;
  // Shapes are [B,H,N,D] for both layouts. Only int32 tensors of rank 1 have data, which points
  // into `integers`.
  Call call;
  std::map<std::string, Spans> payloads;  // of every tensor, by name; empty for an estimate
  int64_t payload_bytes = 0;              // sum over `payloads`
  std::vector<std::vector<int32_t>> integers;
  std::shared_ptr<const Plan> plan;  // set by AddPlan
  absl::Status envelope;             // the errors so far, without the engine's reasons
  bool can_plan = true;              // the tensors can be described to the engine
  // Of an estimate: a backward without gradients is planned with that of out.
  bool assumes_gradient = false;

  DecodedRequest() = default;
  DecodedRequest(DecodedRequest&&) = default;  // not copied: views point into `integers`
  DecodedRequest& operator=(DecodedRequest&&) = default;
};

struct DecodeContext {
  std::span<const std::string> devices;  // valid names; an empty one in a request means any
  int max_priority = kMaxPriority;       // of this caller
};

// The envelope, without the plan. Payloads stay where they are; only rank 1 int32 tensors are read.
// Keeps nothing of `request`.
DecodedRequest DecodeEnvelope(const attn::v1::ForwardRequest& request, std::vector<Spans> raw,
                              const DecodeContext& context);
DecodedRequest DecodeEnvelope(const attn::v1::BackwardRequest& request, std::vector<Spans> raw,
                              const DecodeContext& context);
// An estimate has no data except values that a plan reads, which are optional: without them lengths
// count as full, offsets as absent, packed sequences as equally long.
DecodedRequest DecodeEnvelope(const attn::v1::EstimateRequest& request,
                              const DecodeContext& context);

}  // namespace attnd
