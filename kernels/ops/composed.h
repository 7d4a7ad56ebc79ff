// Compositions: they replace a launch that the device declines by launches that every device runs
// (attend, matmul, elementwise, reduce, cumulative, gather, scatter, sort, fft). Each writes every
// output of the launch; contracts are in kernels/device/. Those of
// softmax and layer_norm are in the files of these primitives.
#pragma once

#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

// For its lifetime `ops` records nothing, and its launches add no pairs and no FLOPs: the
// primitive that is composed has counted its own.
class Uncounted {
 public:
  explicit Uncounted(Ops& ops)
      : ops_(ops),
        recording_(ops.recording()),
        pairs_(ops.stream().work().visible_pairs),
        flops_(ops.stream().work().flops),
        estimates_pairs_(ops.estimates_pairs()) {
    ops.set_recording(false);
  }
  ~Uncounted() {
    ops_.set_recording(recording_);
    ops_.stream().work().visible_pairs = pairs_;
    ops_.stream().work().flops = flops_;
    ops_.EstimatePairs(estimates_pairs_);
  }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  Ops& ops_;
  const bool recording_;
  const double pairs_, flops_;
  const bool estimates_pairs_;
};

// One elementwise launch into a tensor that exists and may be an operand; empty operands: absent.
void ApplyInto(Ops& ops, ElementOp op, const Tensor& out, const Tensor& a, const Tensor& b = {},
               const Tensor& c = {});

// All but kMean. out float32, dense; `arg` int32 of out's shape, dense: written by kMax unless
// empty, read by kSumWhere.
void ComposePool(Ops& ops, PoolOp op, const Tensor& x, const Tensor& arg,
                 const std::vector<std::vector<RowRange>>& ranges, const Tensor& out);

void ComposeMerge(Ops& ops, const std::vector<AttendOut>& parts, const AttendOut& out);
// dout, dlse empty: zero. Of `dparts` empty tensors: not wanted.
void ComposeMergeGrad(Ops& ops, const std::vector<AttendOut>& parts, const AttendOut& out,
                      const AttendOut& dout, const std::vector<AttendOut>& dparts);

// weight [H|1,w], out float32.
void ComposeDepthwiseConv(Ops& ops, const Tensor& x, const Tensor& weight, int64_t left,
                          bool flipped, const Tensor& out);
// dweight [H,w] float32.
void ComposeDepthwiseConvGrad(Ops& ops, const Tensor& x, const Tensor& dout, int64_t left,
                              const Tensor& dweight);

// Recorded and counted like the launches that it is made of; has a gradient of w.
RandomFeaturesOut ComposeRandomFeatures(Ops& ops, const Tensor& x, const Tensor& w,
                                        const RandomFeaturesParams& params);

// A scan as Ops::Scan has checked it.
struct ScanCall {
  Tensor q, k, v;
  ScanParams params;
  ScanSeqs seqs;
  ScanTensors tensors;
};
void ComposeScan(Ops& ops, const ScanCall& call, const ScanOut& out);
// Gradients of q, k, v, log_decay, beta, s0, z0, where wanted, from those of the outputs. Runs the
// forward again.
std::vector<Tensor> ComposeScanGrad(Ops& ops, const ScanCall& call, std::span<const Tensor> grads,
                                    const std::vector<bool>& wanted);

}  // namespace attnd
