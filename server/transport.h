// The gRPC side of the process: one completion queue, one polling thread, every method of every
// service as bytes. Any synchronous or callback service on the same server would start pollers of
// its own and halve the rate of small messages.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/mutex.h"
#include "server/acceptor.h"
#include "server/connections.h"
#include "server/rpc.h"

namespace attnd {

// "/attn.v1.AttentionService/Forward" -> a new handler for one call.
using MethodTable = std::map<std::string, std::function<std::unique_ptr<Handler>()>>;

// Stop in this order: StopServing, then end whatever may still answer a call (lanes), then the
// destructor. An operation started on a queue that was shut down aborts the process; therefore the
// queue closes only when no call is left.
class Transport {
 public:
  struct Options {
    // "host:port" (port 0 takes a free one) or "unix:/path"; at least one.
    std::vector<std::string> addresses;
    int max_concurrent_streams = 256;  // per connection, calls too; clients queue beyond it
    int armed_calls = 32;              // calls that may arrive before the polling thread looks
    // Memory that gRPC may take for what it receives; 0: any. As it fills up, flow-control windows
    // shrink; a message for which none is left ends its call with RESOURCE_EXHAUSTED.
    int64_t buffer_bytes = 0;
    // Receives in large pieces; the process has called UseLargeReads.
    bool large_reads = false;
    // Connections at a time; those that say nothing for `silence` after they were made are closed.
    Connections::Limits connections;
    std::chrono::milliseconds silence{10000};
    // Of connections without a call, and of any; 0: for ever. At its age a connection takes no new
    // calls, what is in flight on it ends.
    std::chrono::milliseconds max_connection_idle{0}, max_connection_age{0};
    // A connection from which nothing came for so long is pinged, and closed without an answer
    // within the timeout; 0: never.
    std::chrono::milliseconds keepalive_time{60000}, keepalive_timeout{20000};
    // How long the polling thread looks for the next event before it sleeps: saves the time to wake
    // up, costs a core. For machines that have one to spare.
    std::chrono::microseconds spin{0};
    // Told of each call, on the polling thread, if set; `rpc` is "" for one that is not in the
    // table, which only ends. A call whose answer did not reach its client never ends with OK.
    std::function<void(absl::string_view rpc)> call_began;
    std::function<void(absl::string_view rpc, absl::StatusCode code)> call_ended;
  };

  // Errors: UNAVAILABLE "cannot listen on 127.0.0.1:8001: Address already in use".
  // A call of a method that is not in the table is answered with UNIMPLEMENTED.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(const Options& options,
                                                          MethodTable methods);
  ~Transport();

  // As given, with the ports that are listened on.
  const std::vector<std::string>& addresses() const { return addresses_; }
  int port() const { return port_; }  // of the first address that has one; 0: none has
  // The method whose event is handled at this moment: "/attn.v1.AttentionService/Run"; "": none.
  absl::string_view running() const {
    const std::string* const name = running_.load(std::memory_order_relaxed);
    return name == nullptr ? "" : *name;
  }
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }  // arrived so far

  int open_calls() const;  // arrived and not gone

  // Of a call, by what gRPC calls its peer; null if it is gone.
  std::shared_ptr<const Connection> ConnectionOf(absl::string_view grpc_peer) const {
    return connections_.Find(grpc_peer);
  }
  Connections::Counts connections() const { return connections_.counts(); }

  // Runs `f` on the polling thread: soon, in the order of the calls, or after a delay. Any thread;
  // not after the destructor began. What `f` throws is logged. Post waits for memory if there is
  // none.
  void Post(std::function<void()> f);
  // Waits until answers that are on their way have left and been counted, `timeout` at most: what
  // clients have received is counted then. Not on the polling thread.
  void Settle(std::chrono::milliseconds timeout);
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> f);

  // Closes the listeners; what is in flight has until `timeout` passed, then it is cancelled.
  // Blocks until all calls have ended.
  //
  // A call that arrives before its client has heard of the stop is cancelled by gRPC, which clients
  // do not take for "try elsewhere". So, while calls keep coming, those that arrive are held for
  // some 200 ms first and handled only after the clients were told: one that waits for each answer
  // then sends its next call elsewhere. Not with `timeout` 0.
  void StopServing(std::chrono::milliseconds timeout);

  // Ends calls whose clients do not take their answers, or do not bring the rest of what
  // Rpc::ReadUnannounced waits for, and forgets connections that were closed. About once a second;
  // any thread.
  void CancelStalled(TimePoint now, bool is_short = false);

 private:
  friend class Rpc;
  class Mailbox;
  class Delayed;

  Transport(const Options& options, MethodTable methods);
  absl::Status Listen(const Options& options);
  absl::Status StartServer(const Options& options);
  void Poll();
  bool Next(void** tag, bool* ok);  // as CompletionQueue::Next
  void CallBegan(const std::string* rpc) const;
  void CallEnded(const std::string* rpc, absl::StatusCode code) const;
  void PumpSoon(std::shared_ptr<Rpc> rpc);
  void PumpAll();
  // The table's entry; null: no such method.
  const MethodTable::value_type* Find(const std::string& method) const;
  void TakeCall(Rpc& rpc);
  void HoldCalls();
  void ReleaseCalls();
  void AddLive(int change);
  // Calls that have arrived and not gone.
  std::vector<std::shared_ptr<Rpc>> OpenCalls();
  // arrivals.cc
  void EndFlood(const FloodWatch::Flood& flood, int checks = 0);
  void TellFlood(const FloodWatch::Flood& flood);
  struct Arrivals;
  static std::vector<Arrivals> FindOverdue(std::span<const std::shared_ptr<Rpc>> calls,
                                           TimePoint now, std::chrono::seconds patience);
  static void EndOverdue(const Arrivals& arrivals, std::chrono::seconds patience,
                         absl::string_view why);
  void EndMostOverdue(std::vector<Arrivals> overdue);
  void GiveUpUnannounced(TimePoint now, bool is_short);
  // Keeps as many calls armed as there were at the start; what there is no memory for follows.
  void ArmAnother() noexcept;
  void ArmMissing() noexcept;
  void AddCall(Rpc* rpc);
  void RemoveCall(Rpc* rpc);

  const MethodTable methods_;
  std::vector<std::string> addresses_;
  int port_ = 0;
  std::chrono::microseconds spin_{0};
  const std::function<void(absl::string_view)> call_began_;
  const std::function<void(absl::string_view, absl::StatusCode)> call_ended_;
  const int64_t most_unannounced_;  // bytes of messages that are not charged
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> leaving_{0};  // answers that gRPC has and has not told the end of
  std::atomic<const std::string*> running_{nullptr};
  std::atomic<TimePoint> last_call_{TimePoint::min()};

  Connections connections_;  // own synchronisation
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;

  mutable Mutex mu_;
  CondVar none_live_;
  int live_ ATTND_GUARDED_BY(mu_) = 0;  // calls, armed ones included, and alarms
  std::unordered_set<Rpc*> calls_alive_ ATTND_GUARDED_BY(mu_);

  const std::unique_ptr<Mailbox> mailbox_;

  // Polling thread only.
  std::vector<std::shared_ptr<Rpc>> to_pump_;
  int events_before_pump_ = 0;
  int to_arm_ = 0;  // calls for which there was no memory
  bool holds_ = false;
  std::vector<std::shared_ptr<Rpc>> held_;
  std::set<const Connection*> overdue_;  // found by the last GiveUpUnannounced

  std::thread thread_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace attnd
