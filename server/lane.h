// Runs batches: pull, gather, execute, answer.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/core/run_control.h"
#include "kernels/engine/engine.h"
#include "server/batcher.h"
#include "server/heartbeat.h"
#include "server/metrics.h"
#include "server/task.h"

namespace attnd {

// Runs one batch at a time, on a thread of its own once started. Every task that it takes is
// answered exactly once, whatever fails.
//
// A task whose deadline passes or that is cancelled while its batch runs is answered by Sweep at
// once; its memory is freed when the run ends. The run is stopped when all its tasks are answered,
// or when it takes twice max_request_seconds.
//
// Memory of a batch: one buffer per input tensor, filled straight from the received slices, which
// are released right after; a request's inputs are freed before its answer is sent. Tasks whose
// inputs find no memory beside the others of the batch run after these. If a batch of several tasks
// fails, each runs again alone, so that a task fails only by itself; if its memory ends, the halves
// run first, and what found no memory alone runs once more when the others have left.
// A copy of inputs that fails on the device fails all tasks of the batch: the stream does not say
// which copy it was.
//
// Once the device has failed for good, all its tasks are answered UNAVAILABLE, in the queue too.
class Lane {
 public:
  // All outlive the lane, none is null. `index` is the lane's metric label.
  struct Parts {
    Engine* engine = nullptr;
    Batcher* batcher = nullptr;
    size_t device = 0;  // of the engine: where its batches run
    Metrics* metrics = nullptr;
    const Clock* clock = nullptr;
    Predictions* predictions = nullptr;  // learn from the runs; null: none
    int threads = 1;                     // of the device
    double max_request_seconds = 0;      // 0: none
    // Runs that may have a part of the device's time at once, which does not show to them: a run is
    // given the time of so many. 1: time that it waits for others is known.
    int sharing_runs = 1;
    int index = 0;
    // The device has failed for good; may be called several times, on any lane's thread.
    std::function<void(const absl::Status& failure)> device_failed;
  };
  explicit Lane(const Parts& parts);
  // Waits for the thread. REQUIRES: the batcher was closed, if the lane was started.
  ~Lane();

  // The thread runs batches until the batcher is closed and drained. RESOURCE_EXHAUSTED: no thread.
  [[nodiscard]] absl::Status Start();
  void Join();  // REQUIRES: the batcher was closed. Returns when the last batch is answered

  // Runs one batch on the calling thread. For tests, with a lane that was not started.
  void RunBatch(Batcher::Batch batch) noexcept;

  // Answers the tasks of the running batch whose deadline has passed or that were cancelled. Any
  // thread.
  void Sweep();
  // Whether the device has failed for good, which no run may tell while none runs; then waiting
  // tasks are answered, too. Any thread.
  absl::Status CheckDevice() const;
  // For the watchdog. Processor time of the thread pool counts as progress, too.
  Watchdog::Part part();

  // Bytes of the input tensors that the running batch holds in the pool of the device. The rest of
  // the memory in use there is scratch memory and outputs. Any thread.
  int64_t input_bytes() const { return input_bytes_.load(std::memory_order_relaxed); }
  // The same of the engine's host pool, which has the integers where the device has other memory.
  int64_t host_input_bytes() const { return host_input_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Gathered;
  using Group = std::vector<Gathered*>;

  void Loop();
  void MarkBusy(const Batcher::Batch& batch) noexcept;
  int64_t Progress();
  void StopAt(TimePoint last_deadline, RunControl* control) const;
  void Publish(std::vector<Gathered>* batch, RunControl* control);
  void Run(std::vector<Gathered>* batch, TimePoint taken, RunControl* control);
  Group GatherAll(Group* group, Stream& stream);
  absl::Status Gather(Gathered* one, Stream& stream);
  void ReleaseInputs(Gathered* one) noexcept;
  void FinishUploads(Group* group, Stream& stream);
  void DropDead(Group* group);
  void Compute(Group group, TimePoint start, Stream& stream, Group* without_memory);
  absl::Status WhyStopped(const Task& task) const;
  absl::Status WhyFailed(absl::Status status);
  void AnswerAll(const Group& group, Execution execution, TimePoint start);
  void Answer(Gathered* one, absl::Status status, std::vector<Result> results) noexcept;
  bool EndRun();
  void Learn(const RunControl& control, bool was_alone) noexcept;

  const Parts parts_;
  std::atomic<int64_t> input_bytes_ = 0, host_input_bytes_ = 0;
  Heart heart_;
  // Of the running batch, if all of it was computed at once.
  struct Measured {
    std::shared_ptr<const Plan> plan;
    double predicted = 0, seconds = 0;
  };
  std::optional<Measured> measured_;
  // Of the running batch.
  uint64_t run_ = 0;  // its id in the batcher
  size_t requests_ = 0;
  std::optional<bool> was_alone_;  // set when the batcher was notified of the end

  Mutex mu_;
  // The batch that runs. To answer a task a thread takes `done` out of it first; the task itself
  // stays until the lane has finished with it.
  std::vector<Gathered>* running_ ATTND_GUARDED_BY(mu_) = nullptr;
  RunControl* control_ ATTND_GUARDED_BY(mu_) = nullptr;
  int looks_after_stop_ ATTND_GUARDED_BY(mu_) = 0;  // of the watchdog

  std::thread thread_;
};

}  // namespace attnd
