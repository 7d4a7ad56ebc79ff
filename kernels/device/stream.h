// Where launches run: the order of one lane's work on a device, and its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/device/memory.h"
#include "kernels/device/status.h"

namespace attnd {

class Device;

// FLOPs credited to a backward, in those of its forward.
constexpr double kBackwardFlops = 2.5;

// What a run did. ops count pairs and FLOPs, the device counts the rest.
struct Work {
  double visible_pairs = 0;  // (b, h, i, j) that the method's definition lets see each other
  double flops = 0;          // credited FLOPs by the method's formula, not what padding costs
  double seconds = 0;        // dry run: predicted by the device, and what the host takes
  int64_t host_bytes = 0;    // dry run: at most what the host keeps beside tensors

  // Dry run: the seconds and host bytes added since `before` come `times` times.
  void Repeat(const Work& before, int64_t times);
};

// How the lists of a dry run stand for those of the run: problems alike have one entry there, so
// that a plan takes no longer for many of them.
struct AlikeProblems {
  int64_t entries = 1;   // of a list with one entry a problem
  int64_t problems = 1;  // that all of them stand for
  int64_t most = 1;      // that one of them stands for

  // At most so many problems have `count` entries.
  int64_t ProblemsOf(int64_t count) const {
    return std::min(count * most, CeilDiv(count, entries) * problems);
  }
};

// Single-threaded; several streams of one device may be used from several threads at once. The
// `control` of a stream can end it early, and decides how urgent its work is. A dry stream (no
// memory) plans a request: it allocates nothing, computes nothing and reads no tensor; launches
// only count memory and predict seconds.
class Stream {
 public:
  // `memory` null: a dry stream; else that of `device`.
  Stream(Device& device, BufferPool* memory, RunControl* control = nullptr);

  ~Stream();  // waits: work that was asked for may still use the control
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() { return device_; }
  Workspace& workspace() { return workspace_; }
  Work& work() { return work_; }
  AlikeProblems& alike() { return alike_; }
  bool is_dry() const { return workspace_.is_dry(); }
  RunControl* control() { return control_; }  // null: nothing stops it
  bool stopped() const { return control_ != nullptr && control_->stopped(); }

  // The queue of a device that works later than it is asked to; null: launches end as they return.
  const std::shared_ptr<WorkQueue>& queue() const { return queue_; }
  // Returns when everything that was asked of this stream has been done: the first failure since
  // the last Wait, after which the rest was skipped.
  DeviceStatus Wait();
  // Whether host and device read what the other has written, at once: the device has host memory,
  // and works as it is asked to.
  bool shares_host_memory() const;

 private:
  Device& device_;
  const std::shared_ptr<WorkQueue> queue_;
  Workspace workspace_;
  Work work_;
  AlikeProblems alike_;
  RunControl* const control_;
};

}  // namespace attnd
