// Buckets of LSH attention, and the rows in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/methods/pattern/data.h"
#include "kernels/methods/reformer/options.h"
#include "kernels/pattern/shapes/reformer.h"

namespace attnd {

// The buckets of all problems, in host memory; empty on a dry stream.
class ReformerBuckets {
 public:
  // As sent, or by the rotations: with y = x R the largest of [y, -y] (Kitaev et al. 2020, section
  // 2), for each factor of n_buckets. They are constants: no gradient flows to q or R.
  ReformerBuckets(Ops& ops, const Inputs& in, const ReformerOptions& o);

  // Sorts the first n rows of a head in every round, as ReformerRounds::order says.
  void Sort(size_t p, int64_t b, int64_t h, ReformerRounds* rounds) const;

 private:
  void Hash(Ops& ops, const Inputs& in, const ReformerOptions& o);
  // Of the rows of one head and round.
  void Keys(size_t p, int64_t b, int64_t h, int64_t round, std::span<int64_t> keys) const;

  const std::span<const ProblemShape> problems_;
  const int64_t rounds_;
  const HostInts sent_;
  // By problem: [B,H,N,rounds,2], the place of the largest for each factor; -1: no second factor.
  std::vector<std::vector<int32_t>> places_;
  std::vector<int64_t> first_factor_;
};

}  // namespace attnd
