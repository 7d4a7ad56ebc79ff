#include "server/plan_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/device/memory.h"
#include "kernels/method/method.h"
#include "server/reasons.h"
#include "server/tensor_context.h"

namespace attnd {
namespace {

// The refusal of a request that needs `need` bytes, described by `what`, of `whose` budget.
absl::Status NoRoom(const Budget& budget, absl::string_view what, int64_t need,
                    absl::string_view whose) {
  const int64_t total = budget.total();
  if (need > total) {
    return Permanent(absl::ResourceExhaustedError(
        absl::StrCat("request: needs ", what, ", ", whose, " budget is ", total)));
  }
  return absl::ResourceExhaustedError(absl::StrCat("request: needs ", what, ", ",
                                                   total - budget.used(), " of ", total,
                                                   " are free, retry later"));
}

absl::Status CheckOutputs(const TensorContext& context, const Plan& plan) {
  if (plan.output_bytes <= context.max_message_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(plan.method->info().id, ": outputs must fit a message of ",
                   context.max_message_bytes, " bytes, got ", plan.output_bytes));
}

absl::Status CheckSeconds(const TensorContext& context, const Plan& plan) {
  const double most = context.max_request_seconds;
  if (most <= 0) return absl::OkStatus();
  const double seconds = context.predictions->Of(plan).likely;
  if (seconds <= most) return absl::OkStatus();
  return Permanent(absl::ResourceExhaustedError(
      absl::StrFormat("%s: predicted seconds must be <= %g (--max-request-seconds), got %.3g",
                      plan.method->info().id, most, seconds)));
}

// What the device holds: integers stay on the host.
int64_t DeviceBytes(const Plan& plan) {
  int64_t bytes = plan.workspace_bytes;
  for (const auto& [name, view] : plan.tensors) {
    bytes += IsFloat(view.dtype) ? RoundedBytes(view.bytes()) : 0;
  }
  return bytes;
}

}  // namespace

absl::Status TooLarge(absl::string_view message_bytes, int64_t max_message_bytes) {
  return Permanent(absl::ResourceExhaustedError(absl::StrCat(
      "Received message larger than max (", message_bytes, " vs. ", max_message_bytes, ")")));
}

absl::Status CheckMessageSize(int64_t message_bytes, int64_t max_message_bytes) {
  if (message_bytes <= max_message_bytes) return absl::OkStatus();
  return TooLarge(absl::StrCat(message_bytes), max_message_bytes);
}

absl::Status CheckMessageFits(int64_t message_bytes, const Budget& budget) {
  if (message_bytes <= budget.total()) return absl::OkStatus();
  return Permanent(absl::ResourceExhaustedError(
      absl::StrCat("request: needs more than ", message_bytes, " bytes, the server's budget is ",
                   budget.total())));
}

absl::Status CheckPlan(const TensorContext& context, const Plan& plan) {
  absl::Status status = CheckOutputs(context, plan);
  return status.ok() ? CheckSeconds(context, plan) : status;
}

PlanBytes BytesFor(const TensorContext& context, const Plan& plan, int64_t received_bytes) {
  if (context.device_budgets[plan.device] != nullptr) {
    // host_bytes has the results that come back to the host, received_bytes the integers.
    return {.host = received_bytes + plan.host_bytes, .device = DeviceBytes(plan)};
  }
  // The slices are freed when the gathered copy is complete, before the workspace grows.
  return {.host =
              received_bytes + std::max(plan.input_bytes, plan.workspace_bytes) + plan.host_bytes};
}

absl::Status NoHostRoom(const TensorContext& context, int64_t need) {
  return NoRoom(*context.budget, absl::StrCat(need, " bytes"), need, "the server's");
}

absl::Status NoDeviceRoom(const TensorContext& context, size_t device, int64_t need) {
  return NoRoom(*context.device_budgets[device],
                absl::StrCat(need, " bytes of ", context.devices[device]), need, "its");
}

std::vector<std::string> RefusalsOf(const TensorContext& context, const Plan& plan,
                                    int64_t message_bytes) {
  std::vector<absl::Status> checked = {CheckMessageSize(message_bytes, context.max_message_bytes),
                                       CheckOutputs(context, plan), CheckSeconds(context, plan)};
  const PlanBytes need = BytesFor(context, plan, message_bytes);
  // Needs more than the message alone, which CheckMessageFits would refuse.
  if (need.host > context.budget->total()) checked.push_back(NoHostRoom(context, need.host));
  const Budget* const of_device = context.device_budgets[plan.device];
  if (of_device != nullptr && need.device > of_device->total()) {
    checked.push_back(NoDeviceRoom(context, plan.device, need.device));
  }
  std::vector<std::string> refusals;
  for (const absl::Status& status : checked) {
    if (!status.ok()) refusals.emplace_back(status.message());
  }
  return refusals;
}

}  // namespace attnd
