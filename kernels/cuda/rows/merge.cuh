// Joining attention results by their lse. Bound by memory: (P + 1) Dv numbers a row of P parts
// forward, (2 P + 2) Dv backward. A group of up to 32 threads takes a row, four columns a thread
// where memory allows; each computes the weights of its row for itself.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/quads.h"
#include "kernels/device/merge.h"

namespace attnd::cuda {

constexpr int kMergeThreads = 256;
constexpr int kMergeFew = 4;     // parts that a problem holds itself
constexpr int kMergeAtOnce = 4;  // parts of which a thread reads elements together
constexpr int kMergeRank = 5;    // of rows [.., N]

// Rows of a view [.., N, Dv] or [.., N].
struct MergeRows {
  void* data;  // null: not given
  DType dtype;
  int64_t stride[kMergeRank];
};

struct MergePartRows {
  MergeRows out, lse, lse_low, dout, dlse;
};

struct MergeOver {
  MergeRows out, lse, lse_low, dout, dlse;
  MergePartRows few[kMergeFew];
  int64_t first_part;  // of the table of parts; -1: few
  int parts;
  int64_t dims[kMergeRank];
  int first_dim;  // those before it are 1
  int64_t rows, Dv;
  bool by_quads;
  uint8_t group_log2;

  SIMT_FN const MergePartRows& Part(const MergePartRows* table, int part) const {
    return first_part < 0 ? few[part] : table[first_part + part];
  }
};

// A thread's row and columns.
struct MergePlace {
  int64_t row[kMergeRank];
  int first_dim;
  int lane, lanes;
  bool is_row;

  SIMT_FN int64_t In(const MergeRows& rows) const {
    int64_t offset = row[kMergeRank - 1] * rows.stride[kMergeRank - 1];
#pragma unroll
    for (int i = 0; i + 1 < kMergeRank; ++i) {
      if (i >= first_dim) offset += row[i] * rows.stride[i];
    }
    return offset;
  }
};

SIMT_FN MergePlace MergePlaceOf(const MergeOver& p, int64_t block) {
  MergePlace at;
  at.first_dim = p.first_dim;
  const int thread = static_cast<int>(threadIdx.x);
  at.lanes = 1 << p.group_log2;
  at.lane = thread & (at.lanes - 1);
  int64_t number = block * (kMergeThreads >> p.group_log2) + (thread >> p.group_log2);
  at.is_row = number < p.rows;
  if (!at.is_row) number = 0;
#pragma unroll
  for (int i = kMergeRank - 1; i >= 0; --i) {
    at.row[i] = i == p.first_dim ? number : 0;
    if (i <= p.first_dim) continue;
    const int64_t rest = number / p.dims[i];
    at.row[i] = number - rest * p.dims[i];
    number = rest;
  }
  return at;
}

// lse with what its rounding left out.
struct MergeLse {
  float lse, low;

  SIMT_FN static MergeLse Of(const MergePartRows& part, const MergePlace& at) {
    const float low = part.lse_low.data == nullptr
                          ? 0.0f
                          : static_cast<const float*>(part.lse_low.data)[at.In(part.lse_low)];
    return {static_cast<const float*>(part.lse.data)[at.In(part.lse)], low};
  }
  SIMT_FN static MergeLse None() { return {-INFINITY, 0}; }
  SIMT_FN bool is_seen() const { return lse != -INFINITY; }
  // What is rounded keeps its order.
  SIMT_FN bool operator>(const MergeLse& other) const {
    return lse > other.lse || (lse == other.lse && low > other.low);
  }
};

// e^(lse_p - shift) / sum instead of e^(lse_p - lse): an lse as large as the shift would lose
// digits. The shift is the largest lse_p, but for an infinite one, which would make inf - inf of
// its own part.
struct MergeWeights {
  MergeLse shift = MergeLse::None();
  float sum = 0;

  SIMT_FN void See(const MergeLse& part) { shift = part > shift ? part : shift; }
  SIMT_FN void EndShift() { shift = fabsf(shift.lse) == INFINITY ? MergeLse{0, 0} : shift; }
  SIMT_FN float Share(const MergeLse& part) const {
    return expf(part.lse - shift.lse + (part.low - shift.low));
  }
  SIMT_FN float Of(const MergeLse& part) const { return Share(part) / sum; }
  SIMT_FN MergeLse Lse() const {
    const double rest = shift.low + log(static_cast<double>(sum));
    const auto lse = static_cast<float>(shift.lse + rest);
    if (!(fabsf(lse) < INFINITY)) return {lse, 0};
    return {lse, static_cast<float>(static_cast<double>(shift.lse) - lse + rest)};
  }
};

SIMT_FN MergeWeights WeightsOfParts(const MergeOver& p, const MergePartRows* table,
                                    const MergePlace& at) {
  MergeWeights weights;
  for (int i = 0; i < p.parts; ++i) weights.See(MergeLse::Of(p.Part(table, i), at));
  weights.EndShift();
  for (int i = 0; i < p.parts; ++i) {
    weights.sum += weights.Share(MergeLse::Of(p.Part(table, i), at));
  }
  return weights;
}

// Of kMergeAtOnce parts from `first` on; -inf where there is none.
SIMT_FN void LoadLses(const MergeOver& p, const MergePartRows* table, const MergePlace& at,
                      int first, MergeLse (&lse)[kMergeAtOnce]) {
#pragma unroll
  for (int k = 0; k < kMergeAtOnce; ++k) {
    lse[k] = first + k < p.parts ? MergeLse::Of(p.Part(table, first + k), at) : MergeLse::None();
  }
}

// kFew: at most kMergeAtOnce parts, whose lses are read once.
template <int kWide, bool kFew>
SIMT_FN void MergeRow(const MergeOver& p, const MergePartRows* table, const MergePlace& at) {
  MergeLse lse[kMergeAtOnce];
  MergeWeights weights;
  for (int first = 0; first < (kFew ? 1 : p.parts); first += kMergeAtOnce) {
    LoadLses(p, table, at, first, lse);
#pragma unroll
    for (int k = 0; k < kMergeAtOnce; ++k) weights.See(lse[k]);
  }
  weights.EndShift();
  for (int first = 0; first < (kFew ? 1 : p.parts); first += kMergeAtOnce) {
    if (!kFew) LoadLses(p, table, at, first, lse);
#pragma unroll
    for (int k = 0; k < kMergeAtOnce; ++k) weights.sum += weights.Share(lse[k]);
  }
  if (at.lane == 0) {
    const MergeLse whole = weights.Lse();
    static_cast<float*>(p.lse.data)[at.In(p.lse)] = whole.lse;
    if (p.lse_low.data != nullptr) {
      static_cast<float*>(p.lse_low.data)[at.In(p.lse_low)] = whole.low;
    }
  }
  const int64_t to = at.In(p.out);
  for (int64_t c = at.lane * kWide; c < p.Dv; c += at.lanes * kWide) {
    float sum[kWide] = {};
    for (int first = 0; first < (kFew ? 1 : p.parts); first += kMergeAtOnce) {
      if (!kFew) LoadLses(p, table, at, first, lse);
      float x[kMergeAtOnce][kWide];
#pragma unroll
      for (int k = 0; k < kMergeAtOnce; ++k) {
        if (!lse[k].is_seen()) continue;
        const MergeRows& out = p.Part(table, first + k).out;
        LoadWide<kWide>(out.data, out.dtype, at.In(out) + c, x[k]);
      }
#pragma unroll
      for (int k = 0; k < kMergeAtOnce; ++k) {
        if (!lse[k].is_seen()) continue;
        const float weight = weights.Of(lse[k]);
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum[j] = fmaf(weight, x[k][j], sum[j]);
      }
    }
    StoreWide<kWide>(p.out.data, p.out.dtype, to + c, sum);
  }
}

// Sums over the lanes of a group, in a fixed order; every lane gets it. All threads of the warp
// take part.
SIMT_FN float GroupSum(float x, int lanes) {
  for (int flip = lanes / 2; flip > 0; flip /= 2) x += __shfl_xor_sync(simt::kAllLanes, x, flip);
  return x;
}

// A thread takes four columns at a time, whether they are one access or not: so the order of the
// sum is that of Dv alone.
template <bool kAligned>
SIMT_FN void MergeGradRow(const MergeOver& p, const MergePartRows* table, const MergePlace& at) {
  const MergeWeights weights = WeightsOfParts(p, table, at);
  const bool flows = p.dout.data != nullptr;
  const int64_t dout = flows ? at.In(p.dout) : 0, out = at.In(p.out);
  const float back =
      p.dlse.data == nullptr ? 0.0f : static_cast<const float*>(p.dlse.data)[at.In(p.dlse)];
  for (int i = 0; i < p.parts; ++i) {
    const MergePartRows& part = p.Part(table, i);
    const MergeLse lse = MergeLse::Of(part, at);
    const bool is_seen = lse.is_seen();
    const float weight = is_seen ? weights.Of(lse) : 0;
    const int64_t from = at.In(part.out), to = at.In(part.dout);
    float dot = 0;
    for (int64_t c = at.lane * kQuad; at.is_row && c < p.Dv; c += at.lanes * kQuad) {
      float grad[kQuad] = {};
      if (is_seen && flows) {
        float g[kQuad], mean[kQuad], x[kQuad];
        LoadUpToFour<kAligned>(p.dout.data, p.dout.dtype, dout + c, p.Dv - c, g);
        LoadUpToFour<kAligned>(p.out.data, p.out.dtype, out + c, p.Dv - c, mean);
        LoadUpToFour<kAligned>(part.out.data, part.out.dtype, from + c, p.Dv - c, x);
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
          dot = fmaf(g[k], x[k] - mean[k], dot);
          grad[k] = weight * g[k];
        }
      }
      if (part.dout.data != nullptr) {
        StoreUpToFour<kAligned>(part.dout.data, part.dout.dtype, to + c, p.Dv - c, grad);
      }
    }
    dot = GroupSum(dot, at.lanes);
    if (part.dlse.data != nullptr && at.is_row && at.lane == 0) {
      static_cast<float*>(part.dlse.data)[at.In(part.dlse)] = is_seen ? weight * (back + dot) : 0;
    }
  }
}

__global__ void __launch_bounds__(kMergeThreads, 3)
    MergeKernel(const __grid_constant__ Problems<MergeOver> problems, const MergePartRows* table) {
  const Place<MergeOver> place = FindPlace(problems);
  const MergeOver& p = place.problem;
  const MergePlace at = MergePlaceOf(p, place.block);
  if (!at.is_row) return;
  if (p.parts > kMergeAtOnce) {
    p.by_quads ? MergeRow<kQuad, false>(p, table, at) : MergeRow<1, false>(p, table, at);
  } else {
    p.by_quads ? MergeRow<kQuad, true>(p, table, at) : MergeRow<1, true>(p, table, at);
  }
}

// Blocks of a processor at least: the compiler spills rather than give a thread more registers than
// it thinks good.
__global__ void __launch_bounds__(kMergeThreads, 2)
    MergeGradKernel(const __grid_constant__ Problems<MergeOver> problems,
                    const MergePartRows* table) {
  const Place<MergeOver> place = FindPlace(problems);
  const MergeOver& p = place.problem;
  const MergePlace at = MergePlaceOf(p, place.block);
  p.by_quads ? MergeGradRow<true>(p, table, at) : MergeGradRow<false>(p, table, at);
}

}  // namespace attnd::cuda
