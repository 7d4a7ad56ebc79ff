#include "server/estimate_call.h"

#include <utility>

#include "attn/v1/attention.pb.h"
#include "server/client_id.h"
#include "server/planner.h"
#include "server/reply.h"
#include "server/small_call.h"

namespace attnd {
namespace {

class EstimateCall final : public SmallCall<attn::v1::EstimateRequest> {
 public:
  explicit EstimateCall(TensorContext* context) : context_(context) {}

  void OnDone(Rpc&, bool cancelled) override {
    if (cancelled && control_ != nullptr) control_->Cancel();
  }

 private:
  void OnRequest(Rpc& rpc, const attn::v1::EstimateRequest& request) override;
  void Answer(Rpc& rpc, DecodedRequest decoded) const;

  TensorContext* const context_;
  std::shared_ptr<RunControl> control_;  // of a plan that the planner makes
};

void EstimateCall::OnRequest(Rpc& rpc, const attn::v1::EstimateRequest& request) {
  const std::string client = ClientOf(rpc);
  DecodedRequest decoded = DecodeEnvelope(request, context_->decode(client));
  const int64_t work = WorkOf(decoded);
  if (work <= kSmallPlanWork) return Answer(rpc, std::move(decoded));
  control_ = std::make_shared<RunControl>();
  if (rpc.deadline() != TimePoint::max()) control_->StopAt(rpc.deadline());
  const auto held = std::make_shared<DecodedRequest>(std::move(decoded));
  Planner::Job job{.client = client, .work = work, .control = control_};
  job.run = [this, call = rpc.shared_from_this(), held] { Answer(*call, std::move(*held)); };
  if (absl::Status status = context_->planner->Submit(job); !status.ok()) rpc.Finish(status);
}

// Any thread; the call keeps its handler.
void EstimateCall::Answer(Rpc& rpc, DecodedRequest decoded) const {
  const absl::Status status = AddPlan(context_->MakePlan(control_.get()), &decoded);
  if (!status.ok()) return rpc.Finish(status);
  rpc.Reply(Serialize(DescribePlan(*decoded.plan, decoded.device)));
}

}  // namespace

std::unique_ptr<Handler> NewEstimateCall(TensorContext* context) {
  return std::make_unique<EstimateCall>(context);
}

}  // namespace attnd
