// Replies as protobuf messages. Pure functions; payloads never pass through here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "attn/v1/attention.pb.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/self_test.h"

namespace attnd {

// A serialised ForwardReply or BackwardReply without `raw`: the caller appends, in the order of
// `tensors`, RawFieldHeader(size) and the payload of each. Tensor i refers to raw[i]; shapes are as
// stored (a four-dimensional BNHD tensor as [B,N,H,D]). `notes`: those of the plan.
std::string EncodeReplyHead(Direction direction, absl::string_view id,
                            std::span<const OutputInfo> tensors, const attn::v1::Stats& stats,
                            std::span<const std::string> notes = {});

// The same for a RunReply; `reply` is the result of EncodeReplyHead.
std::string EncodeRunHead(absl::string_view id, Direction direction, absl::string_view reply);

attn::v1::ListMethodsReply DescribeMethods(std::span<const std::unique_ptr<Method>> methods,
                                           std::span<const std::string> devices);

attn::v1::EstimateReply DescribePlan(const Plan& plan, absl::string_view device);

struct ServerFacts {
  std::string version;
  double uptime_seconds = 0;
  std::vector<DeviceInfo> devices;
  std::vector<SelfTestReport> self_tests;     // of each device
  std::string note;                           // Devices::note
  std::vector<std::string> unusable_devices;  // Devices::unusable
  int64_t max_message_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t max_queue_requests = 0;
};
attn::v1::ServerInfoReply DescribeServer(const ServerFacts& facts);

}  // namespace attnd
