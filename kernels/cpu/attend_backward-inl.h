// The gradients of one share of the keys of a kv head, keys in lanes.
#if defined(ATTND_CPU_ATTEND_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_BACKWARD_INL_H_
#undef ATTND_CPU_ATTEND_BACKWARD_INL_H_
#else
#define ATTND_CPU_ATTEND_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <numbers>

#include "hwy/highway.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/lane_mask-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// For a tile of queries and a tile of keys (rows of Q, K, V, dO):
//   S = Q K^T, dP = dO V^T, P = 2^(S - lse), dS = P (dP - delta + dlse),
//   dV += P^T dO, dK += dS^T Q, dQ += dS K.
// The first two need K^T and V^T, made once a key tile; the others read P and dS by column, which
// the micro-kernel does at no cost.
class ShareOfKeys {
 public:
  ShareOfKeys(const AttendShare& share, float* scratch);
  void Run();

 private:
  // A tensor of one head as packed rows of `stride` floats.
  struct Packed {
    float* data;
    int64_t stride;
    int64_t width;
    float* Row(int64_t i) const { return data + i * stride; }
    Broadcast ByRow() const { return {data, stride, 1}; }
    Rows AsRows() const { return {data, stride}; }
    MutableRows Mutable() const { return {data, stride}; }
    int64_t vectors() const { return RoundUpTo(width, kLanes); }
  };
  struct QueryTile {
    int64_t first, rows;
    const TileMask* mask;
  };

  // Of every query: lse in base 2, in two parts, since its rounding multiplies P; delta - dlse.
  struct RowTerms {
    float lse_high, lse_low, shift;
  };

  void ReadRowTerms(int64_t g, int64_t head);
  void LoadKeys(int64_t first);
  void AddTile(int64_t g, const QueryTile& tile);
  void Weigh(const QueryTile& tile, const RowTerms* terms);
  bool HidesNonFinite(const QueryTile& tile) const;
  void Multiply(const QueryTile& tile, Packed dq, bool first);
  void MultiplyVisible(const QueryTile& tile, Packed dq, bool first);
  void StoreKeys(int64_t first, int64_t rows);

  static void Pack(const HeadRows& from, int64_t first, int64_t rows, const Packed& to,
                   float factor = 1.0f);

  const AttendShare& s_;
  const AttendProblem& p_;
  const AttendRow& row_;
  const int64_t D_, Dv_, Nq_, group_;
  const bool wants_dq_, wants_dk_, wants_dv_, has_dout_;
  int64_t keys_ = 0;  // of the current key tile
  Packed k_, q_, dout_, dk_, dv_;
  Packed weights_, dscores_;  // [query][key]: S then P; dP then dS
  Packed kt_, vt_;            // [D][key], [Dv][key]
  Packed space_;
  RowTerms* row_terms_;  // [group][Nq]
  uint64_t row_bits_[kTile];
};

inline ShareOfKeys::ShareOfKeys(const AttendShare& share, float* scratch)
    : s_(share),
      p_(share.problem->forward),
      row_(p_.rows[share.b]),
      D_(p_.q.shape[3]),
      Dv_(p_.v.shape[3]),
      Nq_(p_.q.shape[2]),
      group_(p_.q.shape[1] / p_.k.shape[1]),
      wants_dq_(share.dq.sums != nullptr),
      wants_dk_(share.problem->dk.data != nullptr),
      wants_dv_(share.problem->dv.data != nullptr),
      has_dout_(share.problem->dout.data != nullptr) {
  const auto take = [&](int64_t rows, int64_t width, int64_t stride) {
    Packed taken = {scratch, stride, width};
    scratch += rows * stride;
    return taken;
  };
  k_ = take(kTile, D_, PackedStride(D_));
  q_ = take(kTile, D_, PackedStride(D_));
  dk_ = take(kTile, D_, PackedStride(D_));
  dout_ = take(kTile, Dv_, PackedStride(Dv_));
  dv_ = take(kTile, Dv_, PackedStride(Dv_));
  weights_ = take(kTile, kTile, kTile);
  dscores_ = take(kTile, kTile, kTile);
  kt_ = take(D_, kTile, PackedStride(kTile));
  vt_ = take(Dv_, kTile, PackedStride(kTile));
  space_ = take(kTile, std::max(D_, Dv_), PackedStride(std::max(D_, Dv_)));
  row_terms_ = reinterpret_cast<RowTerms*>(scratch);
}

// Rows as float32, columns up to a whole vector filled with zeros.
inline void ShareOfKeys::Pack(const HeadRows& from, int64_t first, int64_t rows, const Packed& to,
                              float factor) {
  for (int64_t i = 0; i < rows; ++i) {
    Widen(from.dtype, from.Row(first + i), to.width, to.Row(i), factor);
    std::fill(to.Row(i) + to.width, to.Row(i) + to.vectors(), 0.0f);
  }
}

inline void ShareOfKeys::Run() {
  for (int64_t g = 0; g < group_; ++g) ReadRowTerms(g, s_.kv_head * group_ + g);
  const int64_t q_tiles = CeilDiv(Nq_, kTile);
  if (wants_dq_) std::memset(s_.dq.touched, 0, group_ * q_tiles);
  const Pattern* pattern = row_.pattern.get();
  const KeyShares shares(p_.k.shape[2]);
  for (int64_t tile = 0; tile < shares.tiles; ++tile) {
    if (shares.ShareOf(tile) != s_.share) continue;
    const int64_t first = tile * kTile;
    keys_ = std::clamp<int64_t>(row_.nk - first, 0, kTile);
    std::fill_n(dk_.data, kTile * dk_.stride, 0.0f);
    std::fill_n(dv_.data, kTile * dv_.stride, 0.0f);
    if (keys_ > 0) {
      LoadKeys(first);
      for (int64_t g = 0; g < group_; ++g) {
        for (VisibleTiles visible(pattern, &Pattern::by_key, tile, CeilDiv(row_.nq, kTile));
             !visible.done(); visible.Next()) {
          const int64_t query = visible.tile().index * kTile;
          AddTile(g, {query, std::min(kTile, row_.nq - query), visible.tile().mask});
        }
      }
    }
    StoreKeys(first, std::min(kTile, p_.k.shape[2] - first));
  }
}

// lse in base 2 and delta - dlse of every query of a head. A row that saw nothing gets weights 0.
inline void ShareOfKeys::ReadRowTerms(int64_t g, int64_t head) {
  const DF d;
  const AttendGradProblem& grad = *s_.problem;
  const HeadRows lse = HeadRows::Of(p_.lse, s_.b, head), dlse = HeadRows::Of(grad.dlse, s_.b, head);
  const HeadRows out = HeadRows::Of(p_.out, s_.b, head), dout = HeadRows::Of(grad.dout, s_.b, head);
  float *left = space_.Row(0), *right = dout_.Row(0);
  std::fill(left + Dv_, left + RoundUpTo(Dv_, kLanes), 0.0f);
  std::fill(right + Dv_, right + RoundUpTo(Dv_, kLanes), 0.0f);
  for (int64_t i = 0; i < row_.nq; ++i) {
    float delta = 0;
    const float log_sum = lse.Scalar(i);
    const bool sees = log_sum != -std::numeric_limits<float>::infinity();
    if (sees && has_dout_) {
      Widen(out.dtype, out.Row(i), Dv_, left);
      Widen(dout.dtype, dout.Row(i), Dv_, right);
      VF sum = hn::Zero(d);
      for (int64_t j = 0; j < Dv_; j += kLanes) {
        sum = hn::MulAdd(hn::LoadU(d, left + j), hn::LoadU(d, right + j), sum);
      }
      delta = hn::GetLane(hn::SumOfLanes(d, sum));
    }
    if (sees && dlse.data != nullptr) delta -= dlse.Scalar(i);
    const double lse2 = log_sum * std::numbers::log2e;
    const float high = static_cast<float>(lse2);
    row_terms_[g * Nq_ + i] = {high, static_cast<float>(lse2 - high), delta};
    if (!sees) row_terms_[g * Nq_ + i] = {std::numeric_limits<float>::infinity(), 0, 0};
  }
}

inline void ShareOfKeys::LoadKeys(int64_t first) {
  // Lanes beyond the last key compute something that nobody reads.
  Packed v = {space_.data, PackedStride(Dv_), Dv_};
  Pack(HeadRows::Of(p_.k, s_.b, s_.kv_head), first, keys_, k_);
  Pack(HeadRows::Of(p_.v, s_.b, s_.kv_head), first, keys_, v);
  std::fill(k_.Row(keys_), k_.Row(kTile), 0.0f);
  std::fill(v.Row(keys_), v.Row(kTile), 0.0f);
  Transpose(k_.data, k_.stride, kTile, D_, kt_.data, kt_.stride);
  Transpose(v.data, v.stride, kTile, Dv_, vt_.data, vt_.stride);
}

inline void ShareOfKeys::AddTile(int64_t g, const QueryTile& tile) {
  const int64_t head = s_.kv_head * group_ + g;
  // Scaled as in the forward: the scores are the same bit for bit, so P sums to 1 as it did there.
  Pack(HeadRows::Of(p_.q, s_.b, head), tile.first, tile.rows, q_,
       static_cast<float>(s_.scale * std::numbers::log2e));
  Gemm<Start::kZero>(tile.rows, kTile, D_, q_.ByRow(), kt_.AsRows(), weights_.Mutable());
  if (has_dout_) {
    Pack(HeadRows::Of(s_.problem->dout, s_.b, head), tile.first, tile.rows, dout_);
    Gemm<Start::kZero>(tile.rows, kTile, Dv_, dout_.ByRow(), vt_.AsRows(), dscores_.Mutable());
  } else {
    std::fill_n(dscores_.data, kTile * kTile, 0.0f);
  }
  if (tile.mask != nullptr) TransposeMask(*tile.mask, row_bits_);
  Weigh(tile, row_terms_ + g * Nq_ + tile.first);

  Packed dq = {};
  bool first = false;
  if (wants_dq_) {
    const int64_t stride = GradStride(D_);
    dq = {s_.dq.sums + (g * Nq_ + tile.first) * stride, stride, D_};
    uint8_t* touched = s_.dq.touched + g * CeilDiv(Nq_, kTile) + tile.first / kTile;
    first = *touched == 0;
    *touched = 1;
  }
  if (tile.mask != nullptr && HidesNonFinite(tile)) {
    MultiplyVisible(tile, dq, first);
  } else {
    Multiply(tile, dq, first);
  }
}

// S and dP to P and dS. Selects, so that whatever an invisible pair computed is gone.
inline void ShareOfKeys::Weigh(const QueryTile& tile, const RowTerms* terms) {
  const DF d;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const VF high = hn::Set(d, terms[i].lse_high), low = hn::Set(d, terms[i].lse_low);
    const VF delta = hn::Set(d, terms[i].shift);
    float *weights = weights_.Row(i), *dscores = dscores_.Row(i);
    for (int64_t x = 0; x < kTile; x += kLanes) {
      VF weight = Exp2Small(d, hn::Sub(hn::Sub(hn::LoadU(d, weights + x), high), low));
      VF dscore = hn::Mul(weight, hn::Sub(hn::LoadU(d, dscores + x), delta));
      if (tile.mask != nullptr) {
        const auto sees = LaneMask(row_bits_[i] >> x);
        weight = hn::IfThenElseZero(sees, weight);
        dscore = hn::IfThenElseZero(sees, dscore);
      }
      hn::StoreU(weight, d, weights + x);
      hn::StoreU(dscore, d, dscores + x);
    }
  }
}

// Whether a product with a weight of 0 could make a NaN where nobody sees anything.
inline bool ShareOfKeys::HidesNonFinite(const QueryTile& tile) const {
  const auto has = [](const Packed& x, int64_t rows) {
    bool found = false;
    for (int64_t i = 0; i < rows; ++i) found = found || HasNonFinite(x.Row(i), x.width);
    return found;
  };
  return has(k_, keys_) || has(q_, tile.rows) || (has_dout_ && has(dout_, tile.rows));
}

inline void ShareOfKeys::Multiply(const QueryTile& tile, Packed dq, bool first) {
  const Broadcast weights_t = {weights_.data, 1, kTile}, dscores_t = {dscores_.data, 1, kTile};
  if (wants_dv_ && has_dout_) {
    Gemm<Start::kAdd>(keys_, dv_.vectors(), tile.rows, weights_t, dout_.AsRows(), dv_.Mutable());
  }
  if (wants_dk_) {
    Gemm<Start::kAdd>(keys_, dk_.vectors(), tile.rows, dscores_t, q_.AsRows(), dk_.Mutable());
  }
  if (!wants_dq_) return;
  if (first) {
    Gemm<Start::kZero>(tile.rows, dq.vectors(), keys_, dscores_.ByRow(), k_.AsRows(), dq.Mutable());
  } else {
    Gemm<Start::kAdd>(tile.rows, dq.vectors(), keys_, dscores_.ByRow(), k_.AsRows(), dq.Mutable());
  }
}

// The same by pairs, visible ones only.
inline void ShareOfKeys::MultiplyVisible(const QueryTile& tile, Packed dq, bool first) {
  const auto add = [](float weight, const float* from, int64_t n, float* to) {
    for (int64_t j = 0; j < n; ++j) to[j] += weight * from[j];
  };
  for (int64_t i = 0; i < tile.rows; ++i) {
    if (wants_dq_ && first) std::fill_n(dq.Row(i), dq.vectors(), 0.0f);
    for (int64_t key = 0; key < keys_; ++key) {
      if ((row_bits_[i] >> key & 1) == 0) continue;
      const float dscore = dscores_.Row(i)[key];
      if (wants_dv_ && has_dout_) add(weights_.Row(i)[key], dout_.Row(i), Dv_, dv_.Row(key));
      if (wants_dk_) add(dscore, q_.Row(i), D_, dk_.Row(key));
      if (wants_dq_) add(dscore, k_.Row(key), D_, dq.Row(i));
    }
  }
}

inline void ShareOfKeys::StoreKeys(int64_t first, int64_t rows) {
  // Q carries scale log2(e).
  constexpr float kLn2 = std::numbers::ln2_v<float>;
  const HeadRows dk = HeadRows::Of(s_.problem->dk, s_.b, s_.kv_head);
  const HeadRows dv = HeadRows::Of(s_.problem->dv, s_.b, s_.kv_head);
  for (int64_t i = 0; i < rows; ++i) {
    if (wants_dk_) Narrow(dk.dtype, dk_.Row(i), D_, dk.Row(first + i), kLn2);
    if (wants_dv_) Narrow(dv.dtype, dv_.Row(i), Dv_, dv.Row(first + i));
  }
}

// dq of the heads of a group: the shares' sums in their order. `share` is any of them, its dq that
// of the first; `shares` of them follow each other.
inline void SumShares(const AttendShare& share, int64_t shares, float* scratch) {
  const AttendProblem& p = share.problem->forward;
  const DF d;
  const int64_t D = p.q.shape[3], Nq = p.q.shape[2], group = p.q.shape[1] / p.k.shape[1];
  const int64_t stride = GradStride(D), q_tiles = CeilDiv(Nq, kTile);
  const int64_t nq = p.rows[share.b].nq;
  for (int64_t g = 0; g < group; ++g) {
    const HeadRows dq = HeadRows::Of(share.problem->dq, share.b, share.kv_head * group + g);
    for (int64_t i = 0; i < Nq; ++i) {
      std::fill_n(scratch, stride, 0.0f);
      for (int64_t s = 0; s < shares && i < nq; ++s) {
        if (share.dq.touched[(s * group + g) * q_tiles + i / kTile] == 0) continue;
        const float* part = share.dq.sums + ((s * group + g) * Nq + i) * stride;
        for (int64_t x = 0; x < D; x += kLanes) {
          hn::StoreU(hn::Add(hn::LoadU(d, scratch + x), hn::LoadU(d, part + x)), d, scratch + x);
        }
      }
      Narrow(dq.dtype, scratch, D, dq.Row(i), static_cast<float>(share.scale));
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
