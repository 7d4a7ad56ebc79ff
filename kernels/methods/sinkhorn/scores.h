// Scores of key blocks, one row for each block of queries.
#pragma once

#include <utility>
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
  // A constant of each part: `shape_of(blocks)`, and `fill(blocks, numbers)` with zeros to fill.
  template <class T, class ShapeOf, class Fill>
  Tensor Listed(const ShapeOf& shape_of, const Fill& fill) const {
    // Of each list on the host, beside its numbers.
    constexpr int64_t kListBytes = 64;
    std::vector<Shape> shapes;
    std::vector<std::vector<T>> values(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      shapes.push_back(shape_of(blocks[i]));
      if (ops.stream().is_dry()) {
        ops.stream().work().host_bytes += kListBytes * seqs.parts()[i].count;
        continue;
      }
      values[i].resize(static_cast<size_t>(shapes[i].size()));
      fill(blocks[i], values[i].data());
    }
    return ops.FromHost(shapes, std::move(values));
  }
  // `count` numbers along one of four axes.
  template <class Count, class Value>
  Tensor Numbers(int axis, const Count& count, const Value& value) const {
    const auto shape_of = [&](const SinkhornBlocks& b) {
      Shape shape = {1, 1, 1, 1};
      shape.dims[axis] = count(b);
      return shape;
    };
    return Listed<float>(shape_of, [&](const SinkhornBlocks& b, float* numbers) {
      for (int64_t i = 0; i < count(b); ++i) numbers[i] = static_cast<float>(value(b, i));
    });
  }
};

// x [B,Hkv,Nk,D] of keys or values -> [B,Hkv,columns,slots D]; zeros behind the last key.
Tensor KeyBlocks(const SinkhornRun& run, const Tensor& x);

// R [B,H,rows,columns]; key_blocks as KeyBlocks gives them.
Tensor BlockScores(const SinkhornRun& run, const Tensor& q, const Tensor& k,
                   const Tensor& key_blocks);

}  // namespace attnd
