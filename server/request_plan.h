// Makes the plan of a request, and estimates what planning costs.
#pragma once

#include <functional>
#include <memory>

#include "server/request.h"

namespace attnd {

// Declared number of elements of the tensors whose values are decoded.
int64_t IntegersOf(const google::protobuf::RepeatedPtrField<attn::v1::Tensor>& tensors);
// This many are decoded in less than a millisecond.
constexpr int64_t kSmallIntegers = int64_t{1} << 16;

// PlanWork of the plans of the call on each device, at least its batch size B; 0 if it will not be
// planned.
int64_t WorkOf(const DecodedRequest& request);

// Engine::MakePlan.
using MakePlanFunction =
    std::function<absl::StatusOr<std::shared_ptr<const Plan>>(const Call& call)>;

// Makes the plan with the engine, unless the tensors cannot be described to it. Returns all reasons
// of envelope and engine, one a line, at most kMaxReasonBytes: INVALID_ARGUMENT if any is the
// caller's error, else the code of the engine. Lines of the envelope begin with "request: ", those
// of the method with its id. Any thread.
absl::Status AddPlan(const MakePlanFunction& make_plan, DecodedRequest* request);

}  // namespace attnd
