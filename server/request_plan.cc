#include "server/request_plan.h"

#include <algorithm>

#include "kernels/core/status.h"
#include "kernels/method/registry.h"

namespace attnd {
namespace {

bool LacksGradient(const DecodedRequest& request) {
  const Call& call = request.call;
  return request.assumes_gradient && call.direction == Direction::kBackward &&
         std::ranges::none_of(call.tensors,
                              [](const auto& sent) { return sent.first.starts_with("grad_"); });
}

// The gradient of out, of the shape that a plan of the forward gives out.
absl::Status AddGradient(const MakePlanFunction& make_plan, Call* call) {
  Call forward = *call;
  forward.direction = Direction::kForward;
  const auto plan = make_plan(forward);
  ATTND_RETURN_IF_ERROR(plan.status());
  for (const OutputInfo& output : (*plan)->outputs) {
    if (output.name != "out") continue;
    call->tensors["grad_out"] = DenseView(nullptr, output.dtype, output.shape, output.layout);
  }
  return absl::OkStatus();
}

absl::Status AskEngine(const MakePlanFunction& make_plan, DecodedRequest* request) {
  const Call& call = request->call;
  if (call.method.empty() || make_plan == nullptr) return absl::OkStatus();
  if (request->can_plan) {
    if (LacksGradient(*request)) ATTND_RETURN_IF_ERROR(AddGradient(make_plan, &request->call));
    auto plan = make_plan(call);
    if (plan.ok()) request->plan = *std::move(plan);
    return plan.status();
  }
  // The tensors cannot be checked, but the options can.
  Reasons reasons(call.method);
  if (const Method* method = FindMethod(call.method)) (void)method->Parse(call.options, &reasons);
  return reasons.status();
}

}  // namespace

int64_t IntegersOf(const google::protobuf::RepeatedPtrField<attn::v1::Tensor>& tensors) {
  int64_t integers = 0;
  for (const attn::v1::Tensor& tensor : tensors) {
    if (tensor.dtype() != attn::v1::DType::int32 || tensor.shape_size() != 1) continue;
    if (PlanReads(tensor.name())) {
      integers += std::clamp<int64_t>(tensor.shape(0), 0, kMaxIntegerElements);
    }
  }
  return integers;
}

int64_t WorkOf(const DecodedRequest& request) {
  if (!request.can_plan) return 0;
  int64_t rows = 0;
  for (const auto& [name, view] : request.call.tensors) rows = std::max(rows, view.shape[0]);
  const int64_t plans = LacksGradient(request) ? 2 : 1;
  return plans * request.devices * std::max(rows, PlanWork(request.call));
}

absl::Status AddPlan(const MakePlanFunction& make_plan, DecodedRequest* request) {
  const absl::Status engine = AskEngine(make_plan, request);
  // A cancelled request needs no reasons.
  if (absl::IsCancelled(engine)) return engine;
  return FitTrailer(MergeReasons(request->envelope, engine));
}

}  // namespace attnd
