// One Forward or Backward from its message to its reply, however both travel.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/v1/attention.pb.h"
#include "server/rpc.h"
#include "server/tensor_context.h"

namespace attnd {

// Polling thread only until it is submitted; then the planner, if its plan takes long, a lane and
// whoever answers it have it one after the other. Every request is decided exactly once, by Refuse
// or by its answer, and ends when that has left or never will: then it is counted, measured and
// logged. A result that did not reach its client is no success and has sent nothing.
class TensorRequest final : public Departing {
 public:
  // Makes the head of a message from a serialised ForwardReply or BackwardReply.
  using Frame = std::function<std::string(Direction direction, std::string reply)>;
  // `reply` is empty unless `status` is OK.
  using Done = std::function<void(const absl::Status& status, const grpc::ByteBuffer& reply)>;

  // What Submit takes over: payloads where they were received, what keeps them there, and the bytes
  // that they may hold.
  struct Payloads {
    std::vector<Spans> raw;
    std::shared_ptr<void> owner;
    int64_t message_bytes = 0;
    Budget::Share share;
  };

  // The context and the call outlive it. `frame` null: the reply is the head.
  TensorRequest(TensorContext* context, const Rpc* rpc, Direction direction, TimePoint started,
                Frame frame = nullptr);
  ~TensorRequest() override;
  TensorRequest(const TensorRequest&) = delete;
  TensorRequest& operator=(const TensorRequest&) = delete;

  // Decides before any payload byte is read. Counts a refusal. `device`: the one that the request
  // names; none: not known yet, it is refused if no device would take it.
  absl::Status Admit(std::optional<absl::string_view> device = std::nullopt) const;
  // The same by the serialised message without its payloads, as far as that tells: it is planned at
  // once, and needs no values. What else is wrong with it the message itself will tell.
  absl::Status AdmitHead(absl::string_view head);

  // Decodes, plans and queues. If it fails it is a refusal that was counted and `done` is never
  // called; else `done` is called once, on any thread. It keeps the request alive.
  absl::Status Submit(const attn::v1::ForwardRequest& request, Payloads payloads, Done done);
  absl::Status Submit(const attn::v1::BackwardRequest& request, Payloads payloads, Done done);

  // Runs `submit`, which ends in Submit, by the planner: for what would hold up the polling thread.
  // The same contract as Submit.
  absl::Status Later(int64_t work, Done done, std::function<absl::Status()> submit);

  // Decides what was not queued. `reason` counts a refusal that nobody has counted yet.
  void Refuse(const absl::Status& status);
  void Refuse(const absl::Status& status, Refusal reason);

  // Polling thread: what was decided has left, or never will. `code` stands for a decision that an
  // exception kept from being made.
  void OnLeft() override { End(/*delivered=*/true, absl::StatusCode::kInternal); }
  void End(bool delivered, absl::StatusCode code) noexcept;

  // The caller left. It is answered at once (nobody hears it), and what runs for it alone is
  // stopped.
  void Cancel();

 private:
  struct Charge {
    Budget::Share host;
    Budget::Share device;  // of a device with a budget of its own, until the result is on the host
  };

  template <class Request>
  absl::Status AdmitHeadAs(absl::string_view head);
  template <class Request>
  absl::Status SubmitAs(const Request& request, Payloads payloads, Done done);
  absl::Status Queue(DecodedRequest decoded, std::shared_ptr<void> owner, Done done);
  absl::Status Stopped() const;
  absl::Status CheckPlan(const Plan& plan) const;
  absl::Status ChargeFor(const Plan& plan);
  absl::Status ChargeHost(int64_t need);
  void Answer(const Done& done, absl::Status status, std::span<const Result> results,
              const Phases& phases);
  grpc::ByteBuffer BuildReply(std::span<const Result> results, const Phases& phases);
  void Decide(const absl::Status& status, int64_t sent_bytes);
  void LogEnd(const absl::Status& status, double seconds, int64_t sent_bytes) const noexcept;

  TensorContext* const context_;
  const Rpc* const rpc_;
  const Direction direction_;
  const TimePoint started_;
  const Frame frame_;
  const std::string client_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);

  std::shared_ptr<RunControl> plan_control_;  // of what the planner does; null: nothing

  std::string id_, device_, method_ = "unknown";
  std::shared_ptr<const Plan> plan_;
  int64_t received_bytes_ = 0;
  // What the request holds of the budgets. Shared with the task and the reply: bytes return when
  // the last of them holds none.
  std::shared_ptr<Charge> charge_;
  std::atomic<bool> is_submitted_ = false;  // written by the planner, too
  bool has_ended_ = false;

  // What was decided, on whatever thread; read once it is.
  absl::Status outcome_;
  int64_t reply_bytes_ = 0;
  std::atomic<bool> is_decided_{false};
};

}  // namespace attnd
