// One Forward or Backward from its message to its reply, in a unary call or a stream.
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

// Used by the polling thread only until it is submitted; then by the planner, if its plan takes
// long, a lane and the thread that answers, one after the other. Every request is decided exactly
// once, by Refuse or by its answer, and ends when that has been sent or never will be: then it is
// counted, measured and logged. A result that did not reach its client counts neither as a success
// nor as sent bytes.
class TensorRequest final : public Departing {
 public:
  // Wraps a serialised ForwardReply or BackwardReply into the head of the message that is sent.
  using Frame = std::function<std::string(Direction direction, std::string reply)>;
  // `reply` is empty unless `status` is OK.
  using Done = std::function<void(const absl::Status& status, const grpc::ByteBuffer& reply)>;

  // Passed to Submit: payloads in their received slices, the owner of the slices, and the share of
  // the budget for them.
  struct Payloads {
    std::vector<Spans> raw;
    std::shared_ptr<void> owner;
    int64_t message_bytes = 0;
    Budget::Share share;
  };

  // The context and the call outlive it. `frame` null: the reply itself is the head.
  TensorRequest(TensorContext* context, const Rpc* rpc, Direction direction, TimePoint started,
                Frame frame = nullptr);
  ~TensorRequest() override;
  TensorRequest(const TensorRequest&) = delete;
  TensorRequest& operator=(const TensorRequest&) = delete;

  // Whether the request may be read, before any payload byte is. Counts a refusal. `device`: the
  // one that the request names; none: unknown yet, the request is refused if no device would take
  // it.
  absl::Status Admit(std::optional<absl::string_view> device = std::nullopt) const;
  // The same, with a plan made from `head`, the serialised message without its payloads, if it can
  // be planned at once and without values. Other errors are left to the message itself.
  absl::Status AdmitHead(absl::string_view head);

  // Decodes, plans and queues. An error is a counted refusal, and `done` is never called; else
  // `done` is called once, on any thread. `done` must keep the request alive.
  absl::Status Submit(const attn::v1::ForwardRequest& request, Payloads payloads, Done done);
  absl::Status Submit(const attn::v1::BackwardRequest& request, Payloads payloads, Done done);

  // Runs `submit`, which calls Submit, on the planner's thread, for work that would block the
  // polling thread. The same contract as Submit.
  absl::Status Later(int64_t work, Done done, std::function<absl::Status()> submit);

  // Decides a request that was not queued. `reason`: counts the refusal, if it was not counted yet.
  void Refuse(const absl::Status& status);
  void Refuse(const absl::Status& status, Refusal reason);

  // Polling thread: the answer has been sent, or never will be. `code` is used if an exception
  // prevented the decision.
  void OnLeft() override { End(/*delivered=*/true, absl::StatusCode::kInternal); }
  void End(bool delivered, absl::StatusCode code) noexcept;

  // The caller left. Answers the request at once and stops a run that works for it alone.
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

  std::shared_ptr<RunControl> plan_control_;  // of the planner's job; null: none

  std::string id_, device_, method_ = "unknown";
  std::shared_ptr<const Plan> plan_;
  int64_t received_bytes_ = 0;
  // The request's part of the budgets. Shared with the task and the reply; the bytes return with
  // the last reference.
  std::shared_ptr<Charge> charge_;
  std::atomic<bool> is_submitted_ = false;  // written by the planner, too
  bool has_ended_ = false;

  // The decision, written on any thread; read once is_decided_ is set.
  absl::Status outcome_;
  int64_t reply_bytes_ = 0;
  std::atomic<bool> is_decided_{false};
};

}  // namespace attnd
