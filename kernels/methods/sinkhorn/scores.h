// Scores of key blocks, one row for each block of queries.
#pragma once

#include <vector>

#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/methods/sinkhorn/blocks.h"
#include "kernels/ops/ops.h"

namespace attnd {

// What the steps of sinkhorn share. Lists have one entry a part of `seqs`.
struct SinkhornRun {
  Ops& ops;
  const Inputs& in;
  const SinkhornOptions& o;
  const SeqSplit& seqs;
  const std::vector<SinkhornBlocks>& blocks;
  SinkhornKinds kinds;

  // One value a part.
  template <class F>
  std::vector<int64_t> Each(const F& of) const {
    std::vector<int64_t> values;
    for (const SinkhornBlocks& b : blocks) values.push_back(of(b));
    return values;
  }
  const ProblemShape& ProblemOf(size_t part) const {
    return in.problems[seqs.parts()[part].problem];
  }
  // Query heads of a key head side by side: [B,H,r,n] -> [B,Hkv,(H/Hkv) r,n], and back.
  Tensor Grouped(const Tensor& x) const;
  Tensor Ungrouped(const Tensor& x) const;
  // A constant of each part: `count` numbers along an axis of four.
  template <class Count, class Value>
  Tensor Numbers(int axis, const Count& count, const Value& value) const {
    std::vector<Shape> shapes;
    std::vector<std::vector<float>> values;
    for (const SinkhornBlocks& b : blocks) {
      const int64_t n = count(b);
      shapes.push_back({1, 1, 1, 1});
      shapes.back().dims[axis] = n;
      values.emplace_back();
      for (int64_t i = 0; i < n && !ops.stream().is_dry(); ++i) {
        values.back().push_back(static_cast<float>(value(b, i)));
      }
    }
    return ops.FromHost(shapes, std::move(values));
  }
};

// x [B,Hkv,Nk,D] of keys or values -> [B,Hkv,columns,slots D]; zeros behind the last key.
Tensor KeyBlocks(const SinkhornRun& run, const Tensor& x);

// R [B,H,rows,columns]; key_blocks as KeyBlocks gives them.
Tensor BlockScores(const SinkhornRun& run, const Tensor& q, const Tensor& k,
                   const Tensor& key_blocks);

}  // namespace attnd
