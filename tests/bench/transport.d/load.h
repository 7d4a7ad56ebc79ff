// Closed-loop load: every caller sends q, k, v and waits for out before it sends again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/bench/transport.d/aligned_bytes.h"

namespace attnd::bench {

// What one caller sends: three tensors of equal size, in memory that no other caller uses. q and v
// hold the same floats, so that an echo of q and attention over a single key answer the same bytes.
struct Inputs {
  AlignedBytes q, k, v;
};
std::vector<Inputs> RandomInputs(int callers, size_t bytes);

// The clock and the record of one slice. Different callers may use it at the same time.
class Slice {
 public:
  using Clock = std::chrono::steady_clock;

  // Callers go on until `seconds` have passed; with 0 each makes one call.
  Slice(int callers, double seconds);

  int callers() const { return static_cast<int>(records_.size()); }
  void Begin(int caller);
  // The call of `caller` ended. True: begun again. False: this caller is done.
  bool Again(int caller);

  // Once every caller is done: {"calls":..,"seconds":..,"p50_us":..,"p99_us":..}.
  std::string Json();

 private:
  struct alignas(64) Record {
    Clock::time_point begun;
    std::vector<float> latencies_us;
  };
  const Clock::time_point start_, end_;
  std::vector<Record> records_;
};

// One kind of client, kept for the life of the process with its connections.
class Client {
 public:
  virtual ~Client() = default;
  // What the callers send from now on. `inputs` stays as it is until the next Prepare.
  virtual void Prepare(const std::vector<Inputs>& inputs) = 0;
  // Runs every caller of the slice until it is done. A failed call ends the process.
  virtual void Run(Slice& slice) = 0;
  // The bytes of out that the last call of `caller` brought.
  virtual std::string Reply(int caller) = 0;
};

// For clients that block: a thread for each caller, the first on this one.
void RunBlocking(Slice& slice, const std::function<void(int caller)>& call);

// For clients that do not: `start` begins a call of a caller, and its completion calls Done.
class AsyncRun {
 public:
  AsyncRun(Slice& slice, std::function<void(int caller)> start);
  void Run();  // blocks until all callers are done
  void Done(int caller);

 private:
  Slice& slice_;
  const std::function<void(int)> start_;
  std::mutex mu_;
  std::condition_variable none_left_;
  int left_;
};

[[noreturn]] void Die(const std::string& why);

struct ClientOptions {
  std::string target;
  int spin_us = 0;
};
// The client library; it leaves replies where they were received, or copies each into one array.
std::unique_ptr<Client> NewInPlaceClient(const ClientOptions& options);
std::unique_ptr<Client> NewGatherClient(const ClientOptions& options);
// The same, all callers on one stream.
std::unique_ptr<Client> NewPipelineClient(const ClientOptions& options);
// Generated protobuf stubs.
std::unique_ptr<Client> NewSyncClient(const ClientOptions& options);
std::unique_ptr<Client> NewCallbackClient(const ClientOptions& options);
// Plain sockets.
std::unique_ptr<Client> NewRawClient(const ClientOptions& options);

}  // namespace attnd::bench
