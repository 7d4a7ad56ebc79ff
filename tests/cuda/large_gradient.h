// Gradients of attention so large that the library of a CUDA device computes them, with those of
// the processor.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "tests/cuda/large_attention.h"

namespace attnd::testing {

// 2^30 multiply-adds and more, but no more than eight slices a head on the emulated device.
inline AttentionSizes GradientSizes(DType dtype = DType::kF16) {
  AttentionSizes sizes;
  sizes.dtype = dtype, sizes.H = sizes.Hkv = 16, sizes.Dv = 48;
  return sizes;
}
// A query sees the keys from 100 before its own row on.
inline AttentionSizes WindowGradientSizes(DType dtype, int64_t hi) {
  return {.dtype = dtype, .H = 40, .Hkv = 40, .lo = -100, .hi = hi, .lengths = {{512, 512}}};
}
// A query sees the keys up to 200 after its own row: the last ones are not seen at all.
inline AttentionSizes CausalGradientSizes(DType dtype) {
  return {.dtype = dtype, .H = 24, .Hkv = 24, .Nk = 768, .hi = 200, .lengths = {{512, 768}}};
}

class LargeGradient {
 public:
  explicit LargeGradient(const AttentionSizes& of)
      : sizes(of),
        attention_(of),
        dout_(4, of, of.H, of.Nq, of.Dv),
        dq_(0, of, of.H, of.Nq, of.D),
        dk_(0, of, of.Hkv, of.Nk, of.D),
        dv_(0, of, of.Hkv, of.Nk, of.Dv) {}

  AttendGradProblem problem() const {
    return {.forward = attention_.problem(),
            .dout = dout_.view,
            .dq = dq_.view,
            .dk = dk_.view,
            .dv = dv_.view};
  }
  // A number of row j of keys and values of the first head of a sequence.
  void MakeInfinite(int64_t b, int64_t j) {
    for (const View& view : {attention_.problem().k, attention_.problem().v}) {
      PlainArray rows = ReadView(view);
      rows.At({b, 0, j, 5}) = INFINITY;
      WriteView(rows, view);
    }
  }
  // out and lse, by the processor.
  void RunForward() {
    RunOnProcessor(AttendArgs{.params = params(), .problems = {attention_.problem()}});
  }
  void Clear() {
    for (const View& view : Results(problem())) WriteView(PlainArray(view.shape, NAN), view);
  }
  std::vector<double> Gradients() const {
    std::vector<double> all;
    for (const View& view : Results(problem())) {
      const PlainArray numbers = ReadView(view);
      all.insert(all.end(), numbers.values.begin(), numbers.values.end());
    }
    return all;
  }

  // All numbers, against the processor. Weights and gradients of scores may be rounded to 16 bits
  // on the way; what is infinite or NaN there must not be finite here.
  void Expect() const {
    AttendGradProblem right = problem();
    LargeTensor dq(0, sizes, sizes.H, sizes.Nq, sizes.D),
        dk(0, sizes, sizes.Hkv, sizes.Nk, sizes.D), dv(0, sizes, sizes.Hkv, sizes.Nk, sizes.Dv);
    right.dq = dq.view, right.dk = dk.view, right.dv = dv.view;
    RunOnProcessor(AttendGradArgs{.params = params(), .problems = {right}});
    const double allowed = 8 * (sizes.dtype == DType::kF16 ? 0x1p-11 : 0x1p-8);
    const std::vector<View> ours = Results(problem()), wanted = Results(right);
    for (size_t n = 0; n < ours.size(); ++n) {
      const PlainArray got = ReadView(ours[n]), want = ReadView(wanted[n]);
      double largest = 0, worst = 0;
      bool is_finite = true;
      for (size_t i = 0; i < want.values.size(); ++i) {
        is_finite &= std::isfinite(got.values[i]) == std::isfinite(want.values[i]);
        if (!std::isfinite(want.values[i])) continue;
        largest = std::max(largest, std::fabs(want.values[i]));
        worst = std::max(worst, std::fabs(got.values[i] - want.values[i]));
      }
      EXPECT_TRUE(is_finite) << "dq, dk or dv: " << n;
      EXPECT_LE(worst, allowed * largest) << "dq, dk or dv: " << n;
      EXPECT_GT(largest, 0);
    }
    for (const LargeTensor* tensor : {&dq_, &dk_, &dv_}) EXPECT_TRUE(tensor->array.GuardsIntact());
  }

  static AttendParams params() { return {.scale = LargeAttention::kScale}; }

  const AttentionSizes sizes;

 private:
  static std::vector<View> Results(const AttendGradProblem& p) { return {p.dq, p.dk, p.dv}; }
  static void RunOnProcessor(const Launch& launch) {
    static Device& processor = *NewCpuDevice({.threads = 2})->release();
    Stream stream(processor, &processor.memory());
    ASSERT_TRUE(processor.Run(stream, launch).ok());
  }

  LargeAttention attention_;
  LargeTensor dout_, dq_, dk_, dv_;
};

// Runs them in one launch; all numbers of the results are NaN before. No more memory than planned.
inline void RunGradients(Device& device, const std::vector<LargeGradient*>& gradients,
                         bool is_deterministic = false) {
  AttendGradArgs args{.params = LargeGradient::params(), .is_deterministic = is_deterministic};
  for (LargeGradient* gradient : gradients) {
    gradient->RunForward();
    gradient->Clear();
    args.problems.push_back(gradient->problem());
  }
  AttendGradArgs planned = args;
  for (AttendGradProblem& p : planned.problems) {
    for (AttendSeq& seq : p.forward.seqs) seq.pattern = nullptr;
  }
  RunAsPlanned(device, planned, args);
}

}  // namespace attnd::testing
