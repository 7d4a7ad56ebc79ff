// What methods of low rank share: rows reduced in equal segments, and softmax attention in which
// every query sees every key.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/reduce.h"
#include "kernels/ops/attend.h"
#include "kernels/ops/tensor.h"

namespace attnd {

class Ops;

// Consecutive rows: `count` segments of `width` rows, then `rest` segments of `rest_width`. Two
// numbers in place of a list of ranges, so that a plan takes constant time and a segment is a view.
struct RowSegments {
  int64_t count = 0, width = 1, rest = 0, rest_width = 1;

  int64_t rows() const { return count * width + rest * rest_width; }
  int64_t segments() const { return count + rest; }
};

// ceil(n / width) segments of `width` rows, the last one cut.
RowSegments WindowsOf(int64_t n, int64_t width);
// m segments of floor(n / m) or one more rows, short ones first. n >= m; n = 0: no segment.
RowSegments LandmarksOf(int64_t n, int64_t m);

// x [B,H,N,D] -> [B,H,segments,D] float32; `segments` of all N rows, of every problem.
Tensor ReduceRows(Ops& ops, ReduceOp op, const Tensor& x, const std::vector<RowSegments>& segments);

// x [B,Hkv,N,D] with each head repeated for its `groups` query heads. x where groups = 1, and a
// view that repeats by strides of 0 where Hkv = 1.
Tensor RepeatHeads(Ops& ops, const Tensor& x, const std::vector<int64_t>& groups);
// The same as float32 without strides of 0, as terms of attention must be.
Tensor RepeatHeadsDense(Ops& ops, const Tensor& x, const std::vector<int64_t>& groups);

// Sequences in which every query of q [B,H,Nq,D] sees the first keys[p] keys, of all B alike.
AttendSeqs AllPairs(Ops& ops, const Tensor& q, const std::vector<int64_t>& keys);

}  // namespace attnd
