// What the launchers of scan and of its gradients share: problems as kernels get them, scratch.
#pragma once

#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan/scan_launch.h"
#include "kernels/cuda/scan/scan_work.h"

namespace attnd::cuda {

ScanView ScanViewOf(const View& view);

// The problems of a launch, and their scratch memory.
class ScanPlan {
 public:
  ScanPlan(const ScanParams& params, Stream& stream) : params_(params), stream_(stream) {}

  // Inputs and sizes of the forward; its outputs are not given.
  void Add(const ScanProblem& problem, bool wants_final);
  std::vector<ScanWork>& works() { return works_; }

  // Asks for scratch, `*to` of a work.
  void Want(float** to, int64_t floats) {
    if (floats > 0) wanted_.emplace_back(to, floats);
  }
  // Allocates it, and copies the lines. A stream that is dry leaves pointers that are not null.
  DeviceStatus Take();

  // The works that f accepts.
  template <class F>
  ScanWorks Those(const F& f) const {
    ScanWorks some;
    for (const ScanWork& w : works_) {
      if (f(w)) some.push_back(&w);
    }
    return some;
  }

 private:
  const ScanParams& params_;
  Stream& stream_;
  std::vector<ScanWork> works_;
  std::vector<int64_t> first_line_;
  std::vector<ScanLine> lines_;
  int64_t line_count_ = 0, line_shares_ = 0;
  std::vector<std::pair<float**, int64_t>> wanted_;
  std::shared_ptr<Buffer> scratch_;
  Table table_;
};

}  // namespace attnd::cuda
