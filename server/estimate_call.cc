#include "server/estimate_call.h"

#include <google/protobuf/io/coded_stream.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "attn/v1/attention.pb.h"
#include "server/no_memory.h"
#include "server/plan_limits.h"
#include "server/planner.h"
#include "server/reply.h"
#include "server/small_call.h"

namespace attnd {
namespace {

using google::protobuf::io::CodedOutputStream;

// Of the message without its payloads.
int64_t HeadBytes(const attn::v1::EstimateRequest& request) {
  size_t bytes = request.ByteSizeLong();
  for (const std::string& raw : request.raw()) bytes -= raw.size();
  return static_cast<int64_t>(bytes);
}

// Around the payloads that an estimate leaves out: a tag, the length, and the tensor's `raw_index`.
int64_t FramingBytes(const std::map<std::string, View>& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, view] : tensors) {
    if (view.data != nullptr) continue;
    const auto length = static_cast<uint64_t>(view.bytes());
    bytes += 3 + static_cast<int64_t>(CodedOutputStream::VarintSize64(length));
  }
  return bytes;
}

class EstimateCall final : public SmallCall<attn::v1::EstimateRequest> {
 public:
  explicit EstimateCall(TensorContext* context) : context_(context) {}

  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override;
  void OnDone(Rpc&, bool cancelled) override {
    if (cancelled && control_ != nullptr) control_->Cancel();
  }

 private:
  void OnRequest(Rpc& rpc, const attn::v1::EstimateRequest& request) override;
  void Later(Rpc& rpc, int64_t work, std::function<void(Rpc& rpc)> answer);
  void Answer(Rpc& rpc, DecodedRequest decoded, int64_t head_bytes) const;

  TensorContext* const context_;
  std::shared_ptr<RunControl> control_;  // of the planner's job; null: none
};

void EstimateCall::OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) {
  if (message == nullptr || message->Length() <= kSmallHeadBytes) {
    return SmallCall::OnMessage(rpc, message);
  }
  Later(rpc, static_cast<int64_t>(message->Length()),
        [this, held = *message](Rpc& call) { SmallCall::OnMessage(call, &held); });
}

void EstimateCall::OnRequest(Rpc& rpc, const attn::v1::EstimateRequest& request) {
  DecodedRequest decoded = DecodeEnvelope(request, context_->decode(rpc.client()));
  decoded.assumes_gradient = true;
  const int64_t work = WorkOf(decoded);
  const int64_t head_bytes = HeadBytes(request);
  if (control_ != nullptr || work <= kSmallPlanWork) {
    return Answer(rpc, std::move(decoded), head_bytes);
  }
  const auto held = std::make_shared<DecodedRequest>(std::move(decoded));
  Later(rpc, work,
        [this, held, head_bytes](Rpc& call) { Answer(call, std::move(*held), head_bytes); });
}

// On the planner's thread. The call keeps its handler alive.
void EstimateCall::Later(Rpc& rpc, int64_t work, std::function<void(Rpc& rpc)> answer) {
  control_ = std::make_shared<RunControl>();
  if (rpc.deadline() != TimePoint::max()) control_->StopAt(rpc.deadline());
  Planner::Job job{.client = rpc.client(), .work = work, .control = control_};
  job.run = [this, call = rpc.shared_from_this(), answer = std::move(answer)] {
    const absl::Status status = Guarded([&] {
      if (control_->stopped()) {
        return WhyCancelled(call->started(), call->deadline(), context_->clock->Now());
      }
      answer(*call);
      return absl::OkStatus();
    });
    if (!status.ok()) call->Finish(status);
  };
  if (absl::Status status = context_->planner->Submit(job); !status.ok()) rpc.Finish(status);
}

// Any thread.
void EstimateCall::Answer(Rpc& rpc, DecodedRequest decoded, int64_t head_bytes) const {
  const absl::Status status = context_->AddPlan(rpc.client(), &decoded, control_.get());
  if (!status.ok()) return rpc.Finish(status);
  attn::v1::EstimateReply reply = DescribePlan(*decoded.plan, decoded.device);
  // The request has the head of the estimate, and each tensor's payload once.
  const Plan& plan = *decoded.plan;
  const int64_t message_bytes = plan.input_bytes + head_bytes + FramingBytes(plan.tensors);
  for (std::string& refusal : RefusalsOf(*context_, plan, message_bytes)) {
    reply.add_refusals(std::move(refusal));
  }
  rpc.Reply(Serialize(reply));
}

}  // namespace

std::unique_ptr<Handler> NewEstimateCall(TensorContext* context) {
  return std::make_unique<EstimateCall>(context);
}

}  // namespace attnd
