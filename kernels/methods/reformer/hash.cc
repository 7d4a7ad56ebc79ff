#include "kernels/methods/reformer/hash.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/method/drawn.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr int kFactors = 2;

// Rows 0..n-1 by (key, row), then by row within each chunk, and the ranks of their keys: O(n), or
// O(n log n) where keys lie far apart.
void SortByKey(std::span<const int64_t> keys, int64_t chunk, int32_t* order, int32_t* ranks) {
  const auto n = static_cast<int64_t>(keys.size());
  if (n == 0) return;
  const auto [least, most] = std::minmax_element(keys.begin(), keys.end());
  const int64_t low = *least;
  const uint64_t range = static_cast<uint64_t>(*most) - static_cast<uint64_t>(low);
  if (range > static_cast<uint64_t>(4 * n + 256)) {
    std::iota(order, order + n, 0);
    std::stable_sort(order, order + n, [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
    int32_t rank = 0;
    for (int64_t s = 0; s < n; ++s) {
      if (s > 0 && keys[order[s]] != keys[order[s - 1]]) ++rank;
      ranks[order[s]] = rank;
    }
    for (int64_t s = 0; s < n; s += chunk) std::sort(order + s, order + std::min(s + chunk, n));
    return;
  }
  struct Key {
    int32_t next = 0, rank = 0;  // the place in the order of its next row
  };
  std::vector<Key> found(range + 1);
  for (const int64_t key : keys) ++found[key - low].next;
  Key all;
  for (Key& key : found) {
    const int32_t count = std::exchange(key.next, all.next);
    key.rank = all.rank;
    all.next += count;
    all.rank += count > 0 ? 1 : 0;
  }
  std::vector<int32_t> next_of_chunk(CeilDiv(n, chunk));
  for (size_t c = 0; c < next_of_chunk.size(); ++c) {
    next_of_chunk[c] = static_cast<int32_t>(static_cast<int64_t>(c) * chunk);
  }
  for (int64_t i = 0; i < n; ++i) {
    Key& key = found[keys[i] - low];
    order[next_of_chunk[key.next++ / chunk]++] = static_cast<int32_t>(i);
    ranks[i] = key.rank;
  }
}

}  // namespace

ReformerBuckets::ReformerBuckets(Ops& ops, const Inputs& in, const ReformerOptions& o)
    : problems_(in.problems), rounds_(o.n_hashes), sent_(ops, in, "buckets", 4) {
  if (!sent_.is_sent()) Hash(ops, in, o);
}

void ReformerBuckets::Hash(Ops& ops, const Inputs& in, const ReformerOptions& o) {
  std::vector<Shape> drawn;
  // Of each problem: where the columns of the first factor end, and those of the second.
  std::vector<int64_t> first, all;
  for (const ProblemShape& p : in.problems) {
    const std::vector<int64_t> factors = BucketFactors(o, p.Nq);
    first_factor_.push_back(factors[0]);
    first.push_back(factors[0] / 2);
    all.push_back(RotationColumns(factors));
    drawn.push_back({p.H, p.D, o.n_hashes, all.back()});
  }
  const Tensor rotations = SentOrDrawn(ops, in, "rotations", RotationParams(o), drawn);
  const Tensor x = ops.Stop(in.q);
  std::vector<Tensor> places;
  for (int64_t round = 0; round < o.n_hashes && ops.status().ok(); ++round) {
    const Tensor of_round = ops.Slice(ops.Stop(rotations), 2, {round}, {round + 1});
    if (!ops.status().ok()) return;
    std::vector<Shape> shapes;
    for (size_t p = 0; p < of_round.size(); ++p) {
      const Shape& s = of_round[p].shape;
      shapes.push_back({1, s[0], s[1], s[3]});
    }
    const Tensor y = ops.MatMul(x, ops.Reshape(of_round, shapes));  // [B,H,N,S]
    places.push_back(ops.ArgMaxSigned(ops.Slice(y, 3, {0}, first)));
    places.push_back(ops.ArgMaxSigned(ops.Slice(y, 3, first, all)));
  }
  if (!ops.status().ok()) return;
  places_ = ops.ToHost(ops.Concat(places, 3));
}

void ReformerBuckets::Keys(size_t p, int64_t b, int64_t h, int64_t round,
                           std::span<int64_t> keys) const {
  const int64_t N = problems_[p].Nq;
  if (sent_.is_sent()) {
    const std::span<const int32_t> ids = sent_.Head(p, b, h);  // [rounds, N]
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = ids[round * N + static_cast<int64_t>(i)];
    return;
  }
  const int64_t row = rounds_ * kFactors;
  const int32_t* at = places_[p].data() + (b * problems_[p].H + h) * N * row + round * kFactors;
  for (int64_t& key : keys) {
    key = at[0] + (at[1] < 0 ? 0 : at[1] * first_factor_[p]);
    at += row;
  }
}

void ReformerBuckets::Sort(size_t p, int64_t b, int64_t h, ReformerRounds* rounds) const {
  const int64_t n = rounds->n;
  rounds->order.resize(rounds->rounds * n);
  rounds->buckets.resize(rounds->rounds * n);
  std::vector<int64_t> keys(static_cast<size_t>(n));
  for (int64_t round = 0; round < rounds->rounds; ++round) {
    if (!CheckPoint()) Keys(p, b, h, round, keys);
    SortByKey(keys, rounds->chunk, rounds->order.data() + round * n,
              rounds->buckets.data() + round * n);
  }
  if (rounds->across) rounds->buckets = {};
}

}  // namespace attnd
