// What the gradient of a bias that repeats launches, and its scratch.
#include <algorithm>

#include "kernels/cuda/attend/attend_grad_plan.h"

namespace attnd::cuda::attend_grad {
namespace {

// Pairs of tiles that a block meets in a launch, where it can choose: a millisecond or less of
// 16-bit elements.
constexpr int64_t kMostPairs = 32;
// Blocks that keep a device busy: a few for each processor.
constexpr int64_t kEnoughBlocks = 512;
// Of the shares of a gradient, of one sequence unless it sums over them.
constexpr int64_t kMostBytes = int64_t{32} << 20;
constexpr int64_t kMostShares = 2048;
// Shares that a thread adds up one after another: more are added up in groups first.
constexpr int64_t kGroup = 128;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void GradPlan::PlanBias() {
  if (!needs_bias) return;
  const Shape& s = problem.dterms.bias.shape;
  data.bias_b = s[0] == 1, data.bias_h = s[1] == 1;
  data.bias_q = s[2] == 1, data.bias_k = s[3] == 1;
  ShareBias();
}

void GradPlan::ShareBias() {
  BiasShares& to = data.bias_shares;
  const Shape& s = problem.dterms.bias.shape;
  const int64_t heads = (data.bias_b ? B : 1) * (data.bias_h ? H : 1);
  const bool by_rows = gathers && !is_listed && !data.bias_q;
  if (is_listed) {
    to.q_parts = data.bias_q ? std::max<int64_t>(CeilDiv(Nq, kListBiasRows), 1) : 1;
    to.of_round = data.bias_q ? 1 : kListBiasRows;
  } else if (!by_rows) {
    // Tiles of a head that one number sums over.
    const int64_t q_tiles = data.bias_q ? std::max<int64_t>(CeilDiv64(Nq), 1) : 1;
    const bool all_keys = gathers || data.bias_k;
    const int64_t k_tiles = all_keys ? std::max<int64_t>(CeilDiv64(Nk + Nk2), 1) : 1;
    to.k_parts = CeilDiv(k_tiles, kMostPairs);
    const int64_t of_row = CeilDiv(k_tiles, to.k_parts);
    const int64_t of_item = std::min(q_tiles, kMostPairs / of_row);
    to.q_parts = CeilDiv(q_tiles, of_item);
    to.of_round = kMostPairs / (of_row * of_item);
  }
  to.items = heads * to.q_parts * to.k_parts;
  // In gather orders tiles of several heads may have the same rows: a launch has one head a share,
  // and a block for each of its tiles.
  const int64_t of_rows = CeilDiv(kEnoughBlocks, std::max<int64_t>(CeilDiv64(Nq), 1));
  const int64_t wanted = by_rows ? std::min(heads, of_rows) : CeilDiv(to.items, to.of_round);
  const int64_t bytes = (data.bias_h ? 1 : H) * s[2] * s[3] * 4;
  const int64_t most = std::clamp<int64_t>(kMostBytes / bytes, 1, kMostShares);
  to.shares = std::min(wanted, most);
  if (to.shares > kGroup) to.shares = CeilDiv(to.shares, kGroup) * kGroup;
  to.of_share = CeilDiv(to.items, to.shares);
  planned_shares_ = to.shares;
  if (is_dry && data.bias_b && alike > 1 && to.shares > 1) {
    // Sequences in problems of their own: each rounds up its part, which more than doubles none.
    const int64_t problems = std::clamp<int64_t>(alike, 1, B);
    const int64_t all = by_rows ? std::min(heads, of_rows * problems) : 2 * wanted;
    const int64_t planned = std::min(all, most * problems);
    planned_shares_ = std::max(planned_shares_, planned > kGroup ? 2 * planned : planned);
  }
  // Rounds add float32 numbers. Of a gradient of that size there are blocks enough without rounds.
  const bool is_float = problem.dterms.bias.dtype == DType::kF32;
  if (!gathers && !is_listed && !is_float && bytes > kMostBytes) to.of_round = to.of_share;
}

void GradPlan::PlaceBias(GradMemory* memory) {
  BiasShares& by = data.bias_shares;
  const View& gradient = problem.dterms.bias;
  const Shape& s = gradient.shape;
  const bool adds = gathers || is_listed;
  if (by.shares == 1 && (gradient.dtype == DType::kF32 || (!adds && by.rounds() == 1))) {
    data.bias_sums = GradientPlane(gradient);
    if (adds) Zero(data.bias_sums, s[0], s[1], s[2], s[3]);
    return;
  }
  const int64_t plane = s[2] * s[3], count = s[0] * s[1] * planned_shares_ * plane;
  auto* floats = memory->Take<float>(count);
  if (adds) ZeroFloats(floats, count);
  by.apart = plane;
  data.bias_sums = {floats,
                    data.bias_b ? 0 : s[1] * by.shares * plane,
                    data.bias_h ? 0 : by.shares * plane,
                    data.bias_q ? 0 : s[3],
                    data.bias_k ? 0 : 1,
                    DType::kF32};
  GradParts parts = {.parts = floats,
                     .B = s[0],
                     .H = s[1],
                     .count = by.shares,
                     .all_rows = s[2],
                     .to = GradientPlane(gradient),
                     .rows = s[2],
                     .width = s[3],
                     .factor = 1};
  if (by.shares > kGroup) {
    const int64_t groups = by.shares / kGroup;
    auto* of_groups = memory->Take<float>(count / kGroup);
    GradParts group = parts;
    group.B = s[0] * s[1] * groups, group.H = 1, group.count = kGroup;
    group.to = FloatPlane(of_groups, 1, s[2], s[3]);
    group_sums.push_back(group);
    parts.parts = of_groups, parts.count = groups;
  }
  sums.push_back(parts);
}

int64_t GradPlan::bias_blocks() const {
  if (!needs_bias) return 0;
  const int64_t planes = (data.bias_b ? 1 : B) * (data.bias_h ? 1 : H);
  const int64_t shares = planes * data.bias_shares.shares;
  if (is_listed) return shares * (data.bias_q ? 1 : Nq);
  const int64_t q_tiles = data.bias_in_order ? CeilDiv64(Nq) : data.query_tiles;
  const int64_t k_tiles = data.bias_in_order && !data.bias_k ? CeilDiv64(Nk) : 1;
  return shares * (data.bias_q ? 1 : q_tiles) * k_tiles;
}

}  // namespace attnd::cuda::attend_grad
