// What a request's plan costs, and the plan.
#pragma once

#include <functional>
#include <memory>

#include "server/request.h"

namespace attnd {

// Elements of the lists whose values are decoded, as declared.
int64_t IntegersOf(const google::protobuf::RepeatedPtrField<attn::v1::Tensor>& tensors);
// So many are decoded in less than a millisecond.
constexpr int64_t kSmallIntegers = int64_t{1} << 16;

// PlanWork of the call, where each batch row counts, too; 0 if it will not be planned.
int64_t WorkOf(const DecodedRequest& request);

// Engine::MakePlan.
using MakePlanFunction =
    std::function<absl::StatusOr<std::shared_ptr<const Plan>>(const Call& call)>;

// Asks the engine for the plan, unless the tensors cannot be described to it. All reasons of
// envelope and engine at once, one a line, at most kMaxReasonBytes: INVALID_ARGUMENT if any is the
// caller's error, else what the engine said. Lines of the envelope open with "request: ", those of
// the method with its id. Any thread.
absl::Status AddPlan(const MakePlanFunction& make_plan, DecodedRequest* request);

}  // namespace attnd
