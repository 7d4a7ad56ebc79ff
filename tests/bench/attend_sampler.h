// Times of calls beside the multiply-add peak of the same moments.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/peak.h"
#include "tests/bench/measure.h"

namespace attnd {

struct Measured {
  double seconds = 0;  // median
  double peak = 0;     // FLOP/s of all threads, median
  double share = 0;    // of peak for each FLOP of a call: median of calls, each with the peaks
                       // measured before and after it
  double busy = 0;     // the same of the time that the process had its cores
  bool clean = false;  // of samples during which this process had its cores
};

// Other programs on the machine slow a long call and a short burst differently, so the peak is
// measured for about as long as a call takes. A sample counts when this process had its cores for
// most of it. Where that is rare (a busy machine, or a call so short that threads wait for one
// another) all samples count, and the output line states it.
class PeakSampler {
 public:
  PeakSampler(CpuDevice& device, std::function<void()> call)
      : cpu_(device.cpu()), call_(std::move(call)) {
    call_();
  }

  void Add() {
    // A short call is repeated, because the clocks have a resolution of microseconds.
    if (peaks_.empty()) AddPeak();
    const double wall = Wall(), process = ProcessSeconds();
    int calls = 0;
    do {
      call_();
      ++calls;
    } while (Wall() - wall < 1e-3);
    const double wall_used = Wall() - wall, process_used = ProcessSeconds() - process;
    last_ = wall_used;
    AddPeak();
    const double peak = (peaks_[peaks_.size() - 2] + peaks_.back()) / 2;
    const bool has_cores = process_used > 0.95 * cpu_.threads * wall_used;
    for (int clean = 0; clean <= (has_cores ? 1 : 0); ++clean) {
      seconds_[clean].push_back(wall_used / calls);
      shares_[clean].push_back(calls / wall_used / peak);
    }
    busy_.push_back(calls * cpu_.threads / process_used / peak);
  }

  size_t size() const { return seconds_[0].size(); }
  Measured Result() const {
    const bool clean = seconds_[1].size() >= 3;
    return {Median(seconds_[clean]), Median(peaks_), Median(shares_[clean]), Median(busy_), clean};
  }

 private:
  void AddPeak() {
    peaks_.push_back(MeasureFlops(cpu_.isa, *cpu_.pool, std::clamp(last_, 2e-3, 0.2)));
  }

  const Cpu& cpu_;
  const std::function<void()> call_;
  double last_ = 0;
  std::vector<double> seconds_[2], shares_[2];  // [1]: clean samples only
  std::vector<double> busy_, peaks_;
};

}  // namespace attnd
