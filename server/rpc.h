// One call on the completion queue, and the interface of the methods that handle calls.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/connections.h"
#include "server/task.h"

namespace attnd {

class Rpc;
class Transport;

// An event of the completion queue: every tag is one of these.
class Event {
 public:
  virtual void Run(bool ok) = 0;

 protected:
  ~Event() = default;
};

// What a method does with one call. Owned by the call; every function runs on the polling thread
// and must not block. In every case the handler answers its call exactly once.
class Handler {
 public:
  virtual ~Handler() = default;
  // The headers have arrived and no payload byte was read: starts to read, or refuses.
  virtual void OnHeaders(Rpc& rpc) = 0;
  // The result of Rpc::Read. Null: the client sent no (further) message, or it has left.
  virtual void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) = 0;
  // More is arriving than this call expects, or than another call of the connection does: ends the
  // call with Rpc::FloodStatus, or expects more.
  virtual void OnFlood(Rpc& rpc);
  // During Rpc::ReadUnannounced: its message, or that of another such read of the connection, has
  // begun and does not arrive in time. Ends the call with `status`; called once.
  virtual void OnOverdue(Rpc& rpc, const absl::Status& status);
  // All messages sent on the stream so far have passed flow control.
  virtual void OnSent(Rpc&) {}
  // The call is over. Cancelled: by the client, its deadline or a lost connection, and no answer
  // reached the client. An unanswered call must still be answered, since that ends the call.
  virtual void OnDone(Rpc&, bool /*cancelled*/) {}
  // The last event, after OnDone: the answer has been sent (`delivered`), or never will be.
  virtual void OnEnd(Rpc&, bool /*delivered*/) {}
};

// A message of a stream that waits to be sent. Destroyed without a call if it is never sent.
class Departing {
 public:
  virtual ~Departing() = default;
  // It has passed flow control. Polling thread.
  virtual void OnLeft() = 0;
};

// Lives until gRPC has returned all its tags and the last reference is dropped, on any thread.
class Rpc final : public std::enable_shared_from_this<Rpc> {
 public:
  explicit Rpc(Transport* transport);
  ~Rpc();
  Rpc(const Rpc&) = delete;
  Rpc& operator=(const Rpc&) = delete;

  // Starts to wait for a call. On the polling thread, or before that starts.
  void Arm();
  // Hands the call that arrived to its method. Polling thread.
  void Start();

  // --- constant once the headers have arrived ---
  const std::string& method() const { return context_.method(); }
  TimePoint started() const { return started_; }
  TimePoint deadline() const { return deadline_; }  // max(): none
  const grpc::GenericServerContext& context() const { return context_; }
  // The caller: "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000", or "unix:17" for the 17th connection
  // of a Unix socket; "unknown" once the connection is closed.
  std::string peer() const;
  // The peer without its port: Connection::client.
  std::string client() const;
  // Bytes that its connection has received so far; -1: it has no connection.
  int64_t arrived_bytes() const {
    return connection_ == nullptr ? -1 : connection_->received.load();
  }

  // --- polling thread ---
  // Sets how large the next message may be; 64 KiB by default. By itself it limits nothing, so the
  // handler must check the size of an arrived message. But when a connection receives a few MB more
  // than its calls expect together, those that expect a message get OnFlood.
  void Expect(int64_t bytes);
  int64_t expected() const { return expected_; }
  // The status for a call that ends because of a flood: `status` if the flood is surely of this
  // call, else a status that clients retry, since another call of the connection may be the cause.
  absl::Status FloodStatus(const absl::Status& status) const;
  // One at a time; leads to Handler::OnMessage. The call is ended if its message has not arrived
  // after `patience`.
  void Read(std::chrono::seconds patience = kNoLimit);
  // Reads a message of a stream, which may come at any time or never. But once more than
  // UnfinishedMessages::kFreeBytes of it have arrived, the rest must follow: Handler::OnOverdue.
  void ReadUnannounced();
  static constexpr int64_t kUnannouncedBytes = 1 << 20;  // its largest size
  // For a message that has no reason to be large.
  static constexpr std::chrono::seconds kSmallMessage{30}, kNoLimit{0};
  static constexpr int64_t kSmallBytes = Connection::kSmallBytes;
  // What gRPC may have received for a stream that is not read: its window, which grows with the
  // bandwidth probe. 11 MiB were measured on the loopback.
  static constexpr int64_t kWindowBytes = 16 << 20;
  // Sends a message of a stream. Messages are sent in order, one Write at a time, together with
  // those that already waiting events add; Handler::OnSent follows when all have been sent.
  void Send(grpc::ByteBuffer message, std::shared_ptr<Departing> departing = nullptr);
  // Runs a function posted for the call like an event of it: an exception ends the call.
  void Run(const std::function<void()>& f) noexcept;
  // Ends a stream after the messages sent so far.
  void Close(const absl::Status& status);

  // The code of the answer; UNKNOWN before there is one.
  absl::StatusCode code() const { return code_.load(std::memory_order_relaxed); }

  // --- any thread ---
  // The answer of a unary call. Only the first one counts.
  void Finish(const absl::Status& status) noexcept;
  void Reply(const grpc::ByteBuffer& reply);
  // Ends the call if its message is overdue, or if its client does not read the messages sent to it
  // (patience.h).
  void CancelIfStalled(TimePoint now, bool is_short);

 private:
  friend class Transport;
  // Counts the call among the live ones of the transport; destroyed after every other member.
  class Alive {
   public:
    Alive(Transport* transport, Rpc* rpc);
    ~Alive();

   private:
    Transport* const transport_;
    Rpc* const rpc_;
  };

  // A tag. While gRPC has it, it keeps the call alive.
  class Tag final : public Event {
   public:
    explicit Tag(void (Rpc::*on_event)(bool)) : on_event_(on_event) {}
    void* Hold(Rpc* rpc) {
      held_ = rpc->shared_from_this();
      return static_cast<Event*>(this);
    }
    void Drop() { held_.reset(); }
    void Run(bool ok) override {
      const std::shared_ptr<Rpc> rpc = std::move(held_);
      (rpc.get()->*on_event_)(ok);
    }

   private:
    void (Rpc::*const on_event_)(bool);
    std::shared_ptr<Rpc> held_;
  };

  void OnArrived(bool ok);
  void Settle(int64_t bytes);
  void ExpectLateBytes();
  bool Expects(const Connection& connection) const;  // whether it expects a message on it
  void ReportFlood(bool is_certain);
  // Since when it waits in ReadUnannounced; none: it does not wait, or got OnOverdue.
  std::optional<TimePoint> unannounced_since() const;
  // Whether a message of the call may be arriving.
  bool MayBring() const { return !is_done_ && expected_ > 0; }
  void ReportOverdue(const absl::Status& status);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnDone(bool ok);
  void End();
  void Pump();
  void PumpNow();
  void StartsSending(const grpc::ByteBuffer& message);
  void StopsSending();
  template <class F>
  void Guarded(const F& f) noexcept;
  void Fail(const absl::Status& status) noexcept;
  void FinishShortly() noexcept;

  const Alive alive_;
  Transport* const transport_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  TimePoint started_, deadline_ = TimePoint::max();
  std::atomic<bool> answered_{false};
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kUnknown};  // of the answer
  // When the current message must have arrived, or have been sent.
  std::atomic<TimePoint> read_by_{TimePoint::max()}, send_by_{TimePoint::max()};
  std::atomic<TimePoint> send_by_if_short_{TimePoint::max()};

  std::shared_ptr<const Connection> connection_;  // from the call's arrival on
  // Polling thread only.
  int64_t expected_ = 0;
  bool was_flooded_ = false, is_certain_ = false;  // a flood ended it; surely its own
  std::unique_ptr<Handler> handler_;
  const std::string* name_ = nullptr;  // of the method, in the transport's table
  grpc::ByteBuffer incoming_;
  std::optional<TimePoint> unannounced_since_;
  struct Outgoing {
    grpc::ByteBuffer message;
    std::shared_ptr<Departing> departing;
  };
  std::deque<Outgoing> outbox_;
  bool writing_ = false, has_written_ = false, will_pump_ = false;
  bool broken_ = false, is_done_ = false, is_cancelled_ = false;
  bool sends_no_more_ = false;                    // the client has half-closed or left
  bool has_finished_ = false, was_sent_ = false;  // the answer, as gRPC reports
  std::optional<absl::Status> closing_;

  Tag arrived_{&Rpc::OnArrived}, read_{&Rpc::OnRead}, written_{&Rpc::OnWritten};
  Tag finished_{&Rpc::OnFinished}, done_{&Rpc::OnDone};
};

// The codes of absl and gRPC have the same numbers.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace attnd
