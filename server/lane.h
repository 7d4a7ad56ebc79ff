// Runs batches: pull, gather, execute, answer.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/engine.h"
#include "server/batcher.h"
#include "server/metrics.h"
#include "server/task.h"

namespace attnd {

// One stream of an engine and, once started, the thread that keeps it busy. Every task that it
// takes is answered exactly once, whatever fails.
//
// Memory of a batch: one buffer per input tensor, filled straight from the received slices, which
// are let go right after; a request's inputs are freed before its answer goes out. If a batch of
// several fails, each of its tasks runs again alone, so that none suffers for another.
class Lane {
 public:
  // All outlive the lane, none is null. `index` is the lane's metric label.
  struct Parts {
    Engine* engine = nullptr;
    Batcher* batcher = nullptr;
    Metrics* metrics = nullptr;
    const Clock* clock = nullptr;
    int index = 0;
  };
  explicit Lane(const Parts& parts);
  // Waits for the thread. REQUIRES: the batcher was closed, if the lane was started.
  ~Lane();

  // The thread runs batches until the batcher is closed and drained. RESOURCE_EXHAUSTED: no thread.
  [[nodiscard]] absl::Status Start();
  void Join();  // REQUIRES: the batcher was closed. Returns when the last batch is answered

  // Runs one batch on the calling thread. For a lane that was not started: a puppet of tests.
  void RunBatch(Batcher::Batch batch) noexcept;

  // Bytes of the input tensors that the running batch holds. What else is used of the engine's
  // pool is scratch memory and outputs. Any thread.
  int64_t input_bytes() const { return input_bytes_.load(std::memory_order_relaxed); }

 private:
  using Tasks = std::vector<std::unique_ptr<Task>>;
  struct Gathered;

  void Loop();
  absl::Status Gather(Gathered* one);
  void DropDead(std::vector<Gathered>* batch);
  void Compute(std::vector<Gathered> batch, TimePoint start);
  absl::StatusOr<Execution> Execute(const std::vector<Gathered>& batch);
  void AnswerAll(std::vector<Gathered> batch, Execution execution, TimePoint start);
  void Answer(Gathered one, absl::Status status, std::vector<Result> results) noexcept;

  const Parts parts_;
  Stream stream_;  // used by whoever runs a batch
  std::atomic<int64_t> input_bytes_ = 0;
  std::thread thread_;
};

}  // namespace attnd
