// Where primitives run: one CPU lane or one CUDA stream, and its memory.
#pragma once

#include "kernels/core/memory.h"
#include "kernels/core/run_control.h"

namespace attnd {

class Backend;

// What a run did, added up by the primitives.
struct Work {
  double visible_pairs = 0;  // (b, h, i, j) that the method's definition lets see each other
  double flops = 0;          // credited FLOPs by the method's formula, not what padding costs
  double seconds = 0;        // dry run: the backend's prediction, and what the host takes
  int64_t host_bytes = 0;    // dry run: at most what the host keeps beside tensors
};

// Single-threaded; several streams of one backend may be used from several threads at once. A
// stream with a `control` ends early and shares the device as that says. A dry stream (no pool)
// allocates nothing, computes nothing and reads no tensor: primitives only count memory and work.
// That is how a request is planned.
class Stream {
 public:
  Stream(Backend& backend, BufferPool* pool, RunControl* control = nullptr)
      : backend_(backend), workspace_(pool), control_(control) {}

  Backend& backend() { return backend_; }
  Workspace& workspace() { return workspace_; }
  Work& work() { return work_; }
  bool is_dry() const { return workspace_.is_dry(); }
  RunControl* control() { return control_; }  // null: nothing stops it
  bool stopped() const { return control_ != nullptr && control_->stopped(); }

 private:
  Backend& backend_;
  Workspace workspace_;
  Work work_;
  RunControl* const control_;
};

}  // namespace attnd
