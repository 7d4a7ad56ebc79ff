// The delta rule (Yang et al. 2024, eq. 1) on a state X [rows, lanes]: a token writes what its key
// does not yet read, so that all rows of a column must be there for every token.
#if defined(ATTND_CPU_SCAN_DELTA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_DELTA_INL_H_
#undef ATTND_CPU_SCAN_DELTA_INL_H_
#else
#define ATTND_CPU_SCAN_DELTA_INL_H_
#endif

#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/scan_recur-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// With X the state:
//   X *= decay_t (if kRowsFirst)      X += left_t,m right_t,m^T for m < updates
//   error_t = value_t - X^T key_t     X += weight_t key_t error_t^T
//   out_t,g = X^T read_t,g for g < reads      X *= decay_t (if kRowsLast)
// value not given: 0.
struct DeltaRecurrence {
  int64_t tokens = 0, rows = 0, lanes = 0, updates = 0, reads = 0;
  MutableRows state;
  Series left, right, key, value, error, read, out, decay;
  const float* weight = nullptr;
  int64_t weight_step = 1;
  float *turned = nullptr, *products = nullptr, *writes = nullptr;  // scratch, see DeltaScratch
  Ahead* ahead = nullptr;  // what to fetch on the way, never null
};

namespace recur_internal {

// A few tokens at a time, from the state X before them (Yang et al. 2024, section 3.2): with
// w_t = weight_t error_t and sums over j <= t, without t itself where keys meet keys,
//   error_t = value_t - X^T key_t - sum (left_j . key_t) right_j - sum (key_j . key_t) w_j
//   out_t,g = X^T read_t,g + sum (key_j . read_t,g) w_j      X += sum left_t right_t^T + key_t
//   w_t^T
// so that all products with X are matrix products. A number of a token meets none of a later one,
// not even as a product with zero.
class DeltaChunks {
 public:
  explicit DeltaChunks(const DeltaRecurrence& r)
      : r_(r), lanes_(r.lanes), pitch_(DeltaScratch::Pitch(r.reads)), writes_{r.writes, r.lanes} {}

  // REQUIRES: updates == 0 or reads == 0.
  void Run() {
    for (t_ = 0; t_ < r_.tokens; t_ += kDeltaChunk) {
      T_ = std::min(kDeltaChunk, r_.tokens - t_);
      Turn(r_.key, 0, 0);
      for (int64_t g = 0; g < r_.reads; ++g) Turn(r_.read, g, 1 + g);
      Step();
    }
  }

 private:
  void Step() {
    // What is subtracted from the values, then what is written.
    ReadState(r_.key, 0, writes_);
    for (int64_t m = 0; m < r_.updates; ++m) {
      FindProducts(r_.left, m);
      AddUntil(0, {r_.right.At(m, t_), r_.right.token}, writes_);
    }
    FindProducts(r_.key, 0);
    FindErrors();
    for (int64_t g = 0; g < r_.reads; ++g) {
      const MutableRows out = {r_.out.At(g, t_), r_.out.token};
      ReadState(r_.read, g, out);
      AddUntil(1 + g, Written(), out);
    }
    for (int64_t m = 0; m < r_.updates; ++m) {
      AddToState(r_.left, m, {r_.right.At(m, t_), r_.right.token});
    }
    AddToState(r_.key, 0, Written());
  }

  Rows Written() const { return {writes_.data, writes_.stride}; }

  void ReadState(const Series& a, int64_t term, MutableRows to) const {
    r_.ahead->Some();
    Gemm<Start::kZero>(T_, lanes_, r_.rows, {a.At(term, t_), a.token, 1},
                       {r_.state.data, r_.state.stride}, to);
  }
  void AddToState(const Series& a, int64_t term, Rows b) const {
    r_.ahead->Some();
    Gemm<Start::kAddLast>(r_.rows, lanes_, T_, {a.At(term, t_), 1, a.token}, b, r_.state);
  }

  // Vectors b_t as columns of part `part`, for FindProducts.
  void Turn(const Series& b, int64_t term, int64_t part) const {
    Transpose(b.At(term, t_), b.token, T_, r_.rows, r_.turned + part * kDeltaChunk, pitch_);
  }
  // Product(j, part)[i] = a_j . b_i of all parts.
  void FindProducts(const Series& a, int64_t term) const {
    r_.ahead->Some();
    Gemm<Start::kZero>(T_, pitch_, r_.rows, {a.At(term, t_), a.token, 1}, {r_.turned, pitch_},
                       {r_.products, pitch_});
  }
  const float* Product(int64_t j, int64_t part) const {
    return r_.products + j * pitch_ + part * kDeltaChunk;
  }

  // f(i, c, to_i + sum_j (a_j . b_i) x_j) for the vector of lanes c of each token i, over j <
  // end(i). A group of tokens meets those before it in a matrix product.
  template <class End, class F>
  HWY_INLINE void AddTokens(int64_t part, Rows x, MutableRows to, const End& end,
                            const F& f) const {
    const DF d;
    r_.ahead->Some();
    for (int64_t group = 0; group < T_; group += kRows) {
      const int64_t count = std::min<int64_t>(kRows, T_ - group);
      Gemm<Start::kAdd>(count, lanes_, group, {Product(0, part) + group, 1, pitch_}, x,
                        {to.data + group * to.stride, to.stride});
      for (int64_t i = group; i < group + count; ++i) {
        for (int64_t c = 0; c < lanes_; c += kLanes) {
          VF sum = hn::LoadU(d, to.data + i * to.stride + c);
          for (int64_t j = group; j < end(i); ++j) {
            const VF product = hn::Set(d, Product(j, part)[i]);
            sum = hn::MulAdd(product, hn::LoadU(d, x.data + j * x.stride + c), sum);
          }
          f(i, c, sum);
        }
      }
    }
  }

  void AddUntil(int64_t part, Rows x, MutableRows to) const {
    const DF d;
    AddTokens(
        part, x, to, [](int64_t i) { return i + 1; },
        [&](int64_t i, int64_t c, VF sum)
            HWY_ATTR { hn::StoreU(sum, d, to.data + i * to.stride + c); });
  }

  // error, and what is written in place of what was subtracted.
  void FindErrors() const {
    const DF d;
    const float *const values = r_.value.data, *const weights = r_.weight + t_ * r_.weight_step;
    AddTokens(
        0, Written(), writes_, [](int64_t i) { return i; },
        [&](int64_t i, int64_t c, VF sum) HWY_ATTR {
          const VF value =
              values == nullptr ? hn::Zero(d) : hn::LoadU(d, r_.value.At(0, t_ + i) + c);
          const VF error = hn::Sub(value, sum), weight = hn::Set(d, weights[i * r_.weight_step]);
          hn::StoreU(error, d, r_.error.At(0, t_ + i) + c);
          hn::StoreU(hn::Mul(weight, error), d, writes_.data + i * writes_.stride + c);
        });
  }

  const DeltaRecurrence& r_;
  const int64_t lanes_, pitch_;
  const MutableRows writes_;
  int64_t t_ = 0, T_ = 0;  // the chunk's first token, and how many
};

// With decays, token by token: kV vectors of lanes, all rows; the piece of the state stays in L1.
template <int kV, Decay kDecay>
HWY_NOINLINE void DeltaColumn(const DeltaRecurrence& r, int64_t lane) {
  const DF d;
  // Copied: the compiler cannot know that stores leave `r` alone.
  const int64_t rows = r.rows, stride = r.state.stride;
  float* const state_data = r.state.data + lane;
  const auto at = [&](int64_t row) { return state_data + row * stride; };
  for (int64_t t = 0; t < r.tokens; ++t) {
    r.ahead->Some();
    const float* key = r.key.At(0, t);
    [[maybe_unused]] const float* factor = r.decay.At(0, t);
    for (int64_t m = 0; m < r.updates; ++m) {
      const float *left = r.left.At(m, t), *right = r.right.At(m, t) + lane;
      for (int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) {
          float* x = at(row) + j * kLanes;
          const VF value = hn::LoadU(d, right + j * kLanes);
          hn::StoreU(hn::MulAdd(hn::Set(d, left[row]), value, hn::LoadU(d, x)), d, x);
        }
      }
    }
    const auto state = [&](int64_t row, int j) HWY_ATTR {
      const VF x = hn::LoadU(d, at(row) + j * kLanes);
      if constexpr (kDecay != Decay::kRowsFirst) return x;
      return hn::Mul(hn::Set(d, factor[row]), x);
    };
    // Even and odd rows apart: one sum alone would wait for itself.
    VF even[kV], odd[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) even[j] = odd[j] = hn::Zero(d);
    int64_t row = 0;
    for (; row + 2 <= rows; row += 2) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        even[j] = hn::MulAdd(hn::Set(d, key[row]), state(row, j), even[j]);
        odd[j] = hn::MulAdd(hn::Set(d, key[row + 1]), state(row + 1, j), odd[j]);
      }
    }
    if (row < rows) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        even[j] = hn::MulAdd(hn::Set(d, key[row]), state(row, j), even[j]);
      }
    }
    VF update[kV], out[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      const VF stored = hn::Add(even[j], odd[j]);
      const VF value = r.value.data == nullptr ? hn::Zero(d)
                                               : hn::LoadU(d, r.value.At(0, t) + lane + j * kLanes);
      const VF error = hn::Sub(value, stored);
      hn::StoreU(error, d, r.error.At(0, t) + lane + j * kLanes);
      update[j] = hn::Mul(hn::Set(d, r.weight[t * r.weight_step]), error);
      out[j] = hn::Zero(d);
    }
    const float* read = r.reads > 0 ? r.read.At(0, t) : key;
    for (row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        VF x = hn::MulAdd(hn::Set(d, key[row]), update[j], state(row, j));
        out[j] = hn::MulAdd(hn::Set(d, read[row]), x, out[j]);
        if constexpr (kDecay == Decay::kRowsLast) x = hn::Mul(hn::Set(d, factor[row]), x);
        hn::StoreU(x, d, at(row) + j * kLanes);
      }
    }
    for (int64_t g = 0; g < r.reads; ++g) {
      if (g > 0) {
        const float* weight = r.read.At(g, t);
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) out[j] = hn::Zero(d);
        for (row = 0; row < rows; ++row) {
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) {
            const VF x = hn::LoadU(d, at(row) + j * kLanes);
            out[j] = hn::MulAdd(hn::Set(d, weight[row]), x, out[j]);
          }
        }
      }
      float* to = r.out.At(g, t) + lane;
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) hn::StoreU(out[j], d, to + j * kLanes);
    }
  }
}

template <Decay kDecay>
HWY_NOINLINE void RecurDeltaWith(const DeltaRecurrence& r) {
  int64_t lane = 0;
  for (; lane + 4 * kLanes <= r.lanes; lane += 4 * kLanes) DeltaColumn<4, kDecay>(r, lane);
  for (; lane + 2 * kLanes <= r.lanes; lane += 2 * kLanes) DeltaColumn<2, kDecay>(r, lane);
  if constexpr (kLanes == 16) {
    for (; lane < r.lanes; lane += kLanes) DeltaColumn<1, kDecay>(r, lane);
  }
}

}  // namespace recur_internal

// REQUIRES: lanes is a multiple of 16; decay is kNone, kRowsFirst or
// kRowsLast; updates or reads is 0.
HWY_NOINLINE HWY_MAYBE_UNUSED static void RecurDelta(Decay decay, const DeltaRecurrence& r) {
  if (decay == Decay::kNone) return recur_internal::DeltaChunks(r).Run();
  if (decay == Decay::kRowsFirst) return recur_internal::RecurDeltaWith<Decay::kRowsFirst>(r);
  recur_internal::RecurDeltaWith<Decay::kRowsLast>(r);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
