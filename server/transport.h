// The gRPC side of the process: one completion queue and one polling thread, which handle all
// methods of all services as bytes. A synchronous or callback service on the same server would
// start its own pollers and halve the rate of small messages.
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

// Stop in this order: StopServing, then the threads that may still answer a call (lanes), then the
// destructor. An operation started on a queue that was shut down aborts the process; therefore the
// queue closes only when no call is left.
class Transport {
 public:
  struct Options {
    // "host:port" (port 0 takes a free one) or "unix:/path"; at least one.
    std::vector<std::string> addresses;
    int max_concurrent_streams = 256;  // per connection, unary calls too; clients queue more
    int armed_calls = 32;  // calls that may arrive before the polling thread handles one
    // Memory that gRPC may use for received bytes; 0: no limit. As it fills up, flow-control
    // windows shrink; a message for which none is left ends its call with RESOURCE_EXHAUSTED.
    int64_t buffer_bytes = 0;
    // Receives in large pieces. REQUIRES: the process has called UseLargeReads.
    bool large_reads = false;
    // Limits of connections; one that sends nothing for `silence` after it was made is closed.
    Connections::Limits connections;
    std::chrono::milliseconds silence{10000};
    // How long a connection without a call stays open, and any connection; 0: no limit. At its
    // maximal age a connection accepts no new calls, and calls in flight finish.
    std::chrono::milliseconds max_connection_idle{0}, max_connection_age{0};
    // A connection that has received nothing for this long is pinged, and closed if no answer comes
    // within the timeout; 0: never.
    std::chrono::milliseconds keepalive_time{60000}, keepalive_timeout{20000};
    // How long the polling thread polls for the next event before it sleeps: saves the time to wake
    // up and keeps a core busy. For machines with a core to spare.
    std::chrono::microseconds spin{0};
    // If set, called for each call, on the polling thread. For a call that is not in the table only
    // call_ended is called, with `rpc` "". A call whose answer did not reach its client never ends
    // with OK.
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
  // The method whose event is being handled: "/attn.v1.AttentionService/Run"; "": none.
  absl::string_view running() const {
    const std::string* const name = running_.load(std::memory_order_relaxed);
    return name == nullptr ? absl::string_view() : absl::string_view(*name);
  }
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }  // arrived so far

  int open_calls() const;  // arrived and not ended

  // The connection of a call, by the name of its peer in gRPC; null if it is closed.
  std::shared_ptr<const Connection> ConnectionOf(absl::string_view grpc_peer) const {
    return connections_.Find(grpc_peer);
  }
  Connections::Counts connections() const { return connections_.counts(); }

  // Runs `f` on the polling thread: soon, in the order of the posts, or after a delay. Any thread;
  // not after the destructor began. An exception of `f` is logged. Post waits for memory if there
  // is none.
  void Post(std::function<void()> f);
  // Waits, at most `timeout`, until the answers on their way have been sent and counted, so that
  // the counters include all that clients have received. Not on the polling thread.
  void Settle(std::chrono::milliseconds timeout);
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> f);

  // Closes the listeners. Calls in flight are cancelled after `timeout`. Blocks until all calls
  // have ended.
  //
  // gRPC cancels a call that arrives before its client is notified of the stop, and clients do not
  // retry cancelled calls at another server. So, while calls keep coming, new ones are first held
  // for about 200 ms and handled only after the clients were notified: a client that waits for each
  // answer then sends its next call to another server. Not with `timeout` 0.
  void StopServing(std::chrono::milliseconds timeout);

  // Ends calls whose clients do not read their answers, or do not send the rest of a message that
  // Rpc::ReadUnannounced waits for, and removes closed connections. To be called about once a
  // second; any thread.
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
  // Calls that have arrived and not ended.
  std::vector<std::shared_ptr<Rpc>> OpenCalls();
  // arrivals.cc
  void EndFlood(const FloodWatch::Flood& flood, int checks = 0);
  void ReportFlood(const FloodWatch::Flood& flood);
  struct Arrivals;
  static std::vector<Arrivals> FindOverdue(std::span<const std::shared_ptr<Rpc>> calls,
                                           TimePoint now, std::chrono::seconds patience);
  static void EndOverdue(const Arrivals& arrivals, std::chrono::seconds patience,
                         absl::string_view why);
  void EndMostOverdue(std::vector<Arrivals> overdue);
  void GiveUpUnannounced(TimePoint now, bool is_short);
  // Keep as many calls armed as at the start; calls for which there was no memory are armed later.
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
  const int64_t most_unannounced_;  // bytes of messages that are not charged to the budget
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> leaving_{0};  // answers that gRPC has not finished sending
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
