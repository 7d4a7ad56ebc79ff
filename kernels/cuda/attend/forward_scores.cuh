// How a block of the forward kernel makes weights of products.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/forward_block.cuh"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::HideByMask() {
  uint64_t keys = LowBitsOf(c_.head.keys - int64_t{key_tile_} * kTile);
  if (c_.head.key_rows != nullptr) {
    const unsigned low =
        __ballot_sync(simt::kAllLanes, c_.head.KeyRow(int64_t{key_tile_} * kTile + lane_) >= 0);
    const unsigned high = __ballot_sync(
        simt::kAllLanes, c_.head.KeyRow(int64_t{key_tile_} * kTile + 32 + lane_) >= 0);
    keys &= uint64_t{high} << 32 | low;
  }
  const int mask = KeysRun().mask[0];
  hidden_ = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    uint64_t sees = keys;
    // Terms are read where their query is.
    if (kTerms && QueryRow(RowOfTile(r)) < 0) sees = 0;
    if (mask >= 0) sees &= c_.head.pattern->masks[int64_t{mask} * kTile + RowOfTile(r)];
    if (sees == ~uint64_t{0}) continue;
    sees >>= lane_ % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const auto two = static_cast<uint32_t>(sees >> n * 8) & 3;
      hidden_ |= (two ^ 3) << (n * 4 + r * 2);
    }
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::Weigh(const RelativeWindow& window) {
  HideByMask();
  if constexpr (kTerms) {
    AddTerms(window);
    if (p_.is_softmax()) this->template Soften<true>(1);
    return;
  }
  const bool multiplies = std::is_same_v<T, float> || !(scale_ > 0);
  if (multiplies) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        Score(r, n, 0) = ScaledProduct(scale_, Score(r, n, 0));
        Score(r, n, 1) = ScaledProduct(scale_, Score(r, n, 1));
      }
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    if (is_careful_) MendScores();
  }
  if (hidden_ != 0) {
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      if ((hidden_ >> e & 1) != 0) s_[0][e / 4][e % 4] = -INFINITY;
    }
  }
  this->template Soften<std::is_same_v<T, float>>(multiplies ? 1 : scale_);
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::AddTerms(const RelativeWindow& window) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores_[(n * 4 + i) * kAttendThreads] = s_[0][n][i];
  }
  if constexpr (Shape::kMayBeRelative) {
    if (window.is_shared) __syncwarp();
  }
  const PatternData* pattern = c_.head.pattern;
  const int tile_terms = KeysRun().terms[0];
  const TermsData* terms = tile_terms < 0 ? nullptr : &pattern->terms[tile_terms];
  const bool has_key_bias = pattern != nullptr && pattern->key_bias != nullptr;
  float seen[2] = {0, 0};
#pragma unroll 1
  for (int e = 0; e < 32; ++e) {
    if ((hidden_ >> e & 1) != 0) {
      scores_[e * kAttendThreads] = p_.is_softmax() ? -INFINITY : 0.0f;
      continue;
    }
    const int n = e / 4, i = e % 4, r = i >> 1;
    const int64_t slot = int64_t{key_tile_} * kTile + n * 8 + lane_ % 4 * 2 + (i & 1);
    PairTerms pair;
    pair.query_row = QueryRow(RowOfTile(r));
    pair.key_row = c_.head.KeyRow(slot);
    pair.position = Position::Of(pair.query_row, c_.head.offset);
    pair.slope = c_.slope;
    pair.key_bias = has_key_bias ? pattern->key_bias[slot] : 0.0f;
    pair.terms = terms;
    pair.at = RowOfTile(r) * 64 + n * 8 + lane_ % 4 * 2 + (i & 1);
    float product = scores_[e * kAttendThreads];
    if (is_careful_ && product != product) product = PlainProduct(p_.q, p_.k, pair);
    if constexpr (Shape::kMayBeRelative) {
      if (p_.r.data != nullptr) product += RelativeProduct(window, pair, r);
    }
    bool sees = true;
    float through_cap;
    float s = ScoreOf(p_, c_.head.b, c_.head.h, product, pair, &sees, &through_cap);
    if (!p_.is_softmax()) {
      s = sees ? WeightOf(p_.weighting, s).phi : 0.0f;
      seen[0] += sees && r == 0 ? 1.0f : 0.0f;
      seen[1] += sees && r == 1 ? 1.0f : 0.0f;
    }
    if (!sees) hidden_ |= uint32_t{1} << e;
    scores_[e * kAttendThreads] = s;
  }
  if (!p_.is_softmax()) {
    sum_[0] += seen[0];
    sum_[1] += seen[1];
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s_[0][n][i] = scores_[(n * 4 + i) * kAttendThreads];
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN float ForwardBlock<T, kWidth, kStreams, kTerms>::RelativeProduct(
    const RelativeWindow& window, const PairTerms& pair, int r) const {
  const int64_t delta = pair.position.DeltaTo(pair.key_row, p_.L);
  float product = 0;
  if (window.is_shared) {
    product = relative_[RowOfTile(r) * kRelativeStride + delta - window.first];
    if (!is_careful_ || product == product) return product;
  }
  return Dot(HeadRows::Of(p_.q_rel, c_.head.b, c_.head.h), pair.query_row,
             HeadRows::Of(p_.r, c_.head.b, c_.head.h), delta);
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN float ForwardBlock<T, kWidth, kStreams, kTerms>::Dot(const HeadRows& x, int64_t x_row,
                                                             const HeadRows& y,
                                                             int64_t y_row) const {
  float sum = 0;
  for (int d = 0; d < p_.D; ++d) {
    sum = fmaf(LoadFloat(x.data, x.dtype, x.At(x_row) + d),
               LoadFloat(y.data, y.dtype, y.At(y_row) + d), sum);
  }
  return sum;
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN float ForwardBlock<T, kWidth, kStreams, kTerms>::PlainProduct(const Plane& q,
                                                                      const Plane& k,
                                                                      const PairTerms& pair) const {
  const bool is_own = pair.key_row < p_.Nk;
  return Dot(HeadRows::Of(q, c_.head.b, c_.head.h), pair.query_row,
             HeadRows::Of(is_own ? k : p_.k2, c_.head.b, c_.head.kv),
             is_own ? pair.key_row : pair.key_row - p_.Nk);
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::MendScores() {
#pragma unroll 1
  for (int e = 0; e < 32; ++e) {
    float s = Pick(e);
    if (s == s || (hidden_ >> e & 1) != 0) continue;
    PairTerms pair = {};
    pair.query_row = QueryRow(RowOfTile(e >> 1 & 1));
    if (pair.query_row < 0) continue;
    pair.key_row = KeyRowOf(e / 4, e % 4);
    s = ScaledProduct(scale_, PlainProduct(p_.q, p_.k, pair));
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (e == n * 4 + i) s_[0][n][i] = s;
      }
    }
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN float ForwardBlock<T, kWidth, kStreams, kTerms>::Pick(int e) const {
  float s = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (e == n * 4 + i) s = s_[0][n][i];
    }
  }
  return s;
}

}  // namespace attnd::cuda
