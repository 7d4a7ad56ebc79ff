// The stream behind a Pipeline.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "attnd/pipeline.h"
#include "core.h"
#include "event_queue.h"
#include "kernels/core/mutex.h"
#include "message.h"

namespace attnd::client {

// A request waits in the outbox, is written, and is answered, or goes back to the outbox after a
// while. gRPC takes one Write and one Read at a time. One alarm looks for requests past their
// deadline. When the stream is finished and gRPC has given back every tag, unanswered requests end
// with the stream's status.
class RunStream final : public Activity, public std::enable_shared_from_this<RunStream> {
 public:
  // The core keeps the stream until it has ended. On a closed client it ends at once, CANCELLED.
  static std::shared_ptr<RunStream> Open(std::shared_ptr<Core> core,
                                         const PipelineOptions& options);
  RunStream(std::shared_ptr<Core> core, const PipelineOptions& options);

  // As in Pipeline.
  absl::Status Submit(Direction direction, const Request& request, Callback done);
  absl::Status Close();
  void Cancel() override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    Message message;
    Callback done;  // null: its time is over, but the server will answer
    Clock::time_point deadline = Clock::time_point::max();
    int attempts = 1;
    bool is_sent = false;
  };

  class Tag final : public Event {
   public:
    Tag(RunStream* stream, void (RunStream::*on_event)(bool))
        : stream_(stream), on_event_(on_event) {}
    // For an operation that starts.
    void* Out() ATTND_REQUIRES(stream_->mu_);
    void Run(bool ok) override;

   private:
    RunStream* const stream_;
    void (RunStream::*const on_event_)(bool);
  };

  void Start(grpc::GenericStub* stub, EventQueue* events);
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnAlarm(bool ok);

  Clock::time_point DeadlineOfNow() const;
  // Writes the next message, if there is one and gRPC takes it.
  void Pump() ATTND_REQUIRES(mu_);
  // The same, after the events that are already there, which may add messages. The client's thread
  // only.
  void PumpSoon() ATTND_REQUIRES(mu_);
  void Write(const grpc::ByteBuffer& message) ATTND_REQUIRES(mu_);
  // Looks for late requests at `when`, or before.
  void SetAlarm(Clock::time_point when) ATTND_REQUIRES(mu_);
  // Takes out the late requests; returns when the next one will be late.
  Clock::time_point TakeLate(std::vector<Pending>* late) ATTND_REQUIRES(mu_);
  // Ends a closing stream when all unanswered requests are late.
  void AbandonWithoutWaiters() ATTND_REQUIRES(mu_);
  void Take(RunAnswer answer);
  // Whether it is worth sending again.
  bool MayPass(const Pending& pending, const RunAnswer& answer);
  void ResendLater(const std::string& id, int attempts);
  void Fail(const absl::Status& status);
  void EndIfOver();
  // Runs the callback once gRPC has released the request's memory.
  void Deliver(Pending pending, absl::StatusOr<Reply> reply);
  void RunCallback(Callback done, absl::StatusOr<Reply> reply);
  void Release();

  const std::shared_ptr<Core> core_;
  const PipelineOptions options_;
  std::atomic<int64_t> last_id_{0};

  Mutex mu_;
  CondVar changed_;
  // Null before the start and after the end.
  std::unique_ptr<grpc::ClientContext> context_ ATTND_GUARDED_BY(mu_);
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_ ATTND_GUARDED_BY(mu_);
  std::unordered_map<std::string, Pending> pending_ ATTND_GUARDED_BY(mu_);  // by id
  std::deque<std::string> outbox_ ATTND_GUARDED_BY(mu_);                    // ids
  std::string announced_ ATTND_GUARDED_BY(mu_);  // the id whose message is written next
  int left_to_do_ ATTND_GUARDED_BY(mu_) = 1;     // callbacks, and the end
  int tags_out_ ATTND_GUARDED_BY(mu_) = 0;
  bool can_write_ ATTND_GUARDED_BY(mu_) = false;
  bool will_pump_ ATTND_GUARDED_BY(mu_) = false;
  bool is_closing_ ATTND_GUARDED_BY(mu_) = false;
  bool half_closed_ ATTND_GUARDED_BY(mu_) = false;
  bool is_finished_ ATTND_GUARDED_BY(mu_) = false;
  bool is_abandoned_ ATTND_GUARDED_BY(mu_) = false;
  Clock::time_point alarm_at_ ATTND_GUARDED_BY(mu_) = Clock::time_point::max();  // max: not set
  absl::Status status_ ATTND_GUARDED_BY(mu_);  // once finished, or once the stream failed

  // The client's thread only.
  EventQueue* events_ = nullptr;
  grpc::ByteBuffer incoming_;
  grpc::Status outcome_;
  std::minstd_rand random_{std::random_device{}()};

  Tag started_{this, &RunStream::OnStarted}, read_{this, &RunStream::OnRead};
  Tag written_{this, &RunStream::OnWritten}, finished_{this, &RunStream::OnFinished};
  Tag rung_{this, &RunStream::OnAlarm};
  grpc::Alarm alarm_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd::client
