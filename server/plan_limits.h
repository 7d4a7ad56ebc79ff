// What a request must keep to be served at all, however idle the server is: the rules that refuse
// requests, and what an estimate says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/engine/engine.h"
#include "server/budget.h"

namespace attnd {

struct TensorContext;

// Of the whole message, in the words of gRPC's own check. TooLarge: of a size as text, which may
// have more digits than an integer holds.
absl::Status TooLarge(absl::string_view message_bytes, int64_t max_message_bytes);
absl::Status CheckMessageSize(int64_t message_bytes, int64_t max_message_bytes);
// A message that no budget could ever hold is not waited for.
absl::Status CheckMessageFits(int64_t message_bytes, const Budget& budget);
// Outputs and predicted seconds.
absl::Status CheckPlan(const TensorContext& context, const Plan& plan);

// Bytes that a request takes of the budgets while it runs.
struct PlanBytes {
  int64_t host = 0;
  int64_t device = 0;  // of a device with a budget of its own
};
// `received_bytes`: of the message, which stays in memory until it is gathered.
PlanBytes BytesFor(const TensorContext& context, const Plan& plan, int64_t received_bytes);
// The refusals of PlanBytes for which there is no room: permanent if there never is.
absl::Status NoHostRoom(const TensorContext& context, int64_t need);
absl::Status NoDeviceRoom(const TensorContext& context, size_t device, int64_t need);

// Why a request of this plan would be refused whenever it came, each reason with the limit and what
// it got; empty: it would run.
std::vector<std::string> RefusalsOf(const TensorContext& context, const Plan& plan,
                                    int64_t message_bytes);

}  // namespace attnd
