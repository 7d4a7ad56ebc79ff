// Builds requests, decodes them and lists the reasons of their refusal.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "server/request_plan.h"

namespace attnd {

namespace v1 = attn::v1;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

inline const std::string kDevices[] = {"cpu"};

// A request under construction. Payloads are slices of one long buffer.
template <class Request>
struct Draft {
  Request request;
  std::vector<Spans> raw;
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);

  v1::Tensor& Add(const std::string& name, std::vector<int64_t> shape, int64_t bytes,
                  v1::DType::Value dtype = v1::DType::float32) {
    v1::Tensor& tensor = *request.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(dtype);
    for (int64_t d : shape) tensor.add_shape(d);
    tensor.set_raw_index(static_cast<uint32_t>(raw.size()));
    raw.push_back({std::span(memory).first(bytes)});
    return tensor;
  }
};

inline Draft<v1::ForwardRequest> GoodDraft() {
  Draft<v1::ForwardRequest> draft;
  draft.request.mutable_method()->mutable_local()->set_window_left(4);
  for (const char* name : {"q", "k", "v"}) draft.Add(name, {1, 2, 8, 64}, 4096);
  return draft;
}

// A decode context and a plan function.
struct Context {
  std::span<const std::string> devices;
  MakePlanFunction plan;
};

inline absl::StatusOr<DecodedRequest> WithPlan(DecodedRequest request, const Context& context) {
  absl::Status status = AddPlan(context.plan, &request);
  if (!status.ok()) return status;
  return request;
}

template <class Request>
absl::StatusOr<DecodedRequest> Decode(const Request& request, std::vector<Spans> raw,
                                      const Context& context) {
  return WithPlan(DecodeEnvelope(request, std::move(raw), {.devices = context.devices}), context);
}

inline absl::StatusOr<DecodedRequest> Decode(const v1::EstimateRequest& request,
                                             const Context& context) {
  return WithPlan(DecodeEnvelope(request, {.devices = context.devices}), context);
}

// A fake engine: remembers the call; an error `status` is its answer.
struct FakeEngine {
  bool was_asked = false;
  absl::Status status;
  Context context{.devices = kDevices,
                  .plan = [this](const Call&) -> absl::StatusOr<std::shared_ptr<const Plan>> {
                    was_asked = true;
                    if (!status.ok()) return status;
                    return std::make_shared<const Plan>();
                  }};
};

template <class Request>
std::vector<std::string> Refusal(const Draft<Request>& draft,
                                 const Context& context = {.devices = kDevices}) {
  const auto decoded = Decode(draft.request, draft.raw, context);
  if (decoded.ok()) return {};
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
  return absl::StrSplit(std::string(decoded.status().message()), '\n');
}

}  // namespace attnd
