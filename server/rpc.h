// One call on the completion queue, and what a method does with it.
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

// What the completion queue hands back: every tag is one of these.
class Event {
 public:
  virtual void Run(bool ok) = 0;

 protected:
  ~Event() = default;
};

// One call as its method sees it. Owned by the call; every function runs on the polling thread and
// must not block. Whatever else happens, the handler answers its call exactly once.
class Handler {
 public:
  virtual ~Handler() = default;
  // The headers are here and no payload byte was read: reads, or refuses.
  virtual void OnHeaders(Rpc& rpc) = 0;
  // The outcome of Rpc::Read. Null: the client sent no (further) message, or it is gone.
  virtual void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) = 0;
  // More is arriving than the call said that it expects, or than another call of the connection
  // did: ends the call with Rpc::Blame, or expects more.
  virtual void OnFlood(Rpc& rpc);
  // Of Rpc::ReadUnannounced: the message, or that of another such read of the connection, has begun
  // and does not arrive in time. Ends the call with `status`, once.
  virtual void OnOverdue(Rpc& rpc, const absl::Status& status);
  // Everything that was sent on the stream has left, as far as flow control goes.
  virtual void OnSent(Rpc&) {}
  // The call is over. Cancelled: by the client, its deadline or a lost connection, and no answer
  // reached it; an unanswered call must still be answered (nobody hears it, but it ends the call).
  virtual void OnDone(Rpc&, bool /*cancelled*/) {}
  // The last event, after OnDone: the answer has left (`delivered`), or never will.
  virtual void OnEnd(Rpc&, bool /*delivered*/) {}
};

// A message of a stream on its way. Dropped without a word when it never leaves.
class Departing {
 public:
  virtual ~Departing() = default;
  // It has left, as far as flow control goes. Polling thread.
  virtual void OnLeft() = 0;
};

// Lives until gRPC has given back all its tags and nobody holds a reference. The last reference may
// be dropped on any thread.
class Rpc final : public std::enable_shared_from_this<Rpc> {
 public:
  explicit Rpc(Transport* transport);
  ~Rpc();
  Rpc(const Rpc&) = delete;
  Rpc& operator=(const Rpc&) = delete;

  // Waits for a call. Polling thread, or before it starts.
  void Arm();
  // Hands the call that arrived to its method. Polling thread.
  void Start();

  // --- constant once the headers are here ---
  const std::string& method() const { return context_.method(); }
  TimePoint started() const { return started_; }
  TimePoint deadline() const { return deadline_; }  // max(): none
  const grpc::GenericServerContext& context() const { return context_; }
  // Who calls: "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000", or "unix:17" for the 17th connection of
  // a Unix socket; "unknown" once the connection is gone.
  std::string peer() const;
  // The peer without its port: Connection::client.
  std::string client() const;
  // What its connection has received so far; -1: it has none.
  int64_t arrived_bytes() const {
    return connection_ == nullptr ? -1 : connection_->received.load();
  }

  // --- polling thread ---
  // How large the next message may be; 64 KiB unless told. Not a limit by itself, which the size of
  // what has arrived must keep: when the calls of a connection together receive some MB more than
  // they expect, those that expect a message have their OnFlood.
  void Expect(int64_t bytes);
  int64_t expected() const { return expected_; }
  // What a call ends with for a flood: `status` if it is this call's; if it may be that of another
  // call of the connection, what clients take for "try again".
  absl::Status Blame(const absl::Status& status) const;
  // One at a time; answered by Handler::OnMessage. A call whose message has not arrived after
  // `patience` is ended.
  void Read(std::chrono::seconds patience = kNoLimit);
  // Reads what a stream may bring at any time, or never. But once more of it than
  // UnfinishedMessages::kFreeBytes is here, the rest must follow: Handler::OnOverdue.
  void ReadUnannounced();
  static constexpr int64_t kUnannouncedBytes = 1 << 20;  // that it has at most
  // For a message that has no reason to be large.
  static constexpr std::chrono::seconds kSmallMessage{30}, kNoLimit{0};
  static constexpr int64_t kSmallBytes = Connection::kSmallBytes;
  // What gRPC may have received of a stream that is not read: its window, which the bandwidth probe
  // lets grow. 11 MiB were seen on the loopback.
  static constexpr int64_t kWindowBytes = 16 << 20;
  // A message of a stream. They leave in order, one Write at a time, together with what the events
  // that are there already add; Handler::OnSent tells when all have.
  void Send(grpc::ByteBuffer message, std::shared_ptr<Departing> departing = nullptr);
  // Runs what was posted for the call as its events are run: what it throws ends the call.
  void Run(const std::function<void()>& f) noexcept;
  // Ends a stream after what was sent.
  void Close(const absl::Status& status);

  // The code of the answer, once it was given.
  absl::StatusCode code() const { return code_.load(std::memory_order_relaxed); }

  // --- any thread ---
  // The answer of a unary call. The first one counts.
  void Finish(const absl::Status& status) noexcept;
  void Reply(const grpc::ByteBuffer& reply);
  // Ends the call if its message is overdue, or if its client does not take what was sent to it
  // (patience.h).
  void CancelIfStalled(TimePoint now, bool is_short);

 private:
  friend class Transport;
  // Keeps the call among the transport's live ones: released after every other member.
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
  bool Expects(const Connection& connection) const;  // a message, through it
  void TellFlood(bool is_certain);
  // Since when it waits in ReadUnannounced; none: it does not, or was told OnOverdue.
  std::optional<TimePoint> unannounced_since() const;
  // Whether a message of it may be on its way.
  bool MayBring() const { return !is_done_ && expected_ > 0; }
  void TellOverdue(const absl::Status& status);
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
  // When the message on its way must have arrived, or left.
  std::atomic<TimePoint> read_by_{TimePoint::max()}, send_by_{TimePoint::max()};
  std::atomic<TimePoint> send_by_if_short_{TimePoint::max()};

  std::shared_ptr<const Connection> connection_;  // from the call's arrival on
  // Polling thread only.
  int64_t expected_ = 0;
  bool was_flooded_ = false, is_certain_ = false;  // whose flood it was
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
  bool sends_no_more_ = false;                    // the client, by its half-close or its leaving
  bool has_finished_ = false, was_sent_ = false;  // the answer, as gRPC tells
  std::optional<absl::Status> closing_;

  Tag arrived_{&Rpc::OnArrived}, read_{&Rpc::OnRead}, written_{&Rpc::OnWritten};
  Tag finished_{&Rpc::OnFinished}, done_{&Rpc::OnDone};
};

// The codes of absl and gRPC have the same numbers.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace attnd
