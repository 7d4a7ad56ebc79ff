// Streams and events: work that runs when it is waited for, or at another pace.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "devices.h"

namespace emu {

// When streams run what they are asked for: when it is waited for, as soon as it is asked for, or
// some of it whenever they are asked for more and whenever a thread asks how far they are. Their
// host may depend on none of it.
enum class Pace { kLate, kAtOnce, kRandom };

// Not to be changed while work runs.
struct StreamOptions {
  StreamOptions();
  Pace pace = Pace::kLate;  // EMULATED_CUDA_PACE: late, at-once, random
  // The n-th new event from here on finds no memory; 0: none does.
  std::atomic<int64_t> faulty_event{0};
};
extern StreamOptions stream_options;

// Work of one stream, in the order of asking; the n-th piece has position n. Thread safe. Outlives
// its stream while events name it.
class Queue {
 public:
  struct Work {
    std::function<void()> run;
    bool fails = false;          // loses the context instead
    bool survives_loss = false;  // runs though the context is lost
    bool waits = false;          // for other work; it touches no device memory
  };

  explicit Queue(Device* device) : device_(device) {}

  Device& device() const { return *device_; }
  // Returns its position.
  int64_t Add(Work work);
  // Runs what has not run up to `position` on this thread, or waits for the thread that does.
  void RunTo(int64_t position);
  void RunAll() { RunTo(last()); }
  bool HasPassed(int64_t position);
  int64_t last();

 private:
  static void Run(const Work& work);
  // Runs as much as the pace says.
  void Advance();

  Device* const device_;
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::deque<Work> works_;
  int64_t last_ = 0, done_ = 0;
  bool runs_ = false;  // some thread is in a piece of work
};

// The queue of a stream of the current device. Aborts for the null stream. Null, with *error set:
// `what` cannot be asked of it.
Queue* QueueFor(cudaStream_t stream, const char* what, cudaError_t* error);

}  // namespace emu
