// What the forward and the backward of scan share: the state, its shifts, the causal triangle.
#if defined(ATTND_CPU_SCAN_CORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_CORE_INL_H_
#undef ATTND_CPU_SCAN_CORE_INL_H_
#else
#define ATTND_CPU_SCAN_CORE_INL_H_
#endif

#include "kernels/cpu/scan_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Every sum over keys is kept relative to e^shift. Only kExp has shifts, the maximum of the keys
// summed so far; for all other maps they are 0 and no factor is applied.
struct ScanCore {
  const ScanItem& item;
  const ScanParams& params;
  const ScanProblem& problem;
  const ScanRow& row;
  const ScanWalk walk;
  const ScanLayout layout;
  const int64_t D, Dv, group;
  const bool shifted;
  const double log_scale;
  Tile q, k, v, o, kt, m, s;
  float *z, *sum, *q_shift, *k_shift, *row_d, *row_shift, *factor;
  float shift = kNothing;  // of s and z

  ScanCore(const ScanItem& work, float* scratch)
      : item(work),
        params(*work.params),
        problem(*work.problem),
        row(problem.rows[work.b]),
        walk(params, row),
        layout(work),
        D(layout.D),
        Dv(layout.Dv),
        group(problem.q.shape[1] / problem.k.shape[1]),
        shifted(params.map == FeatureMap::kExp),
        log_scale(std::log(params.scale)),
        q{scratch + layout.q, layout.q_pitch, layout.q_width},
        k{scratch + layout.k, layout.q_pitch, layout.q_width},
        v{scratch + layout.v, layout.v_pitch, layout.v_width},
        o{scratch + layout.o, layout.v_pitch, layout.v_width},
        kt{scratch + layout.kt, layout.c_pitch, layout.c_pitch},
        m{scratch + layout.m, layout.c_pitch, layout.c_pitch},
        s{scratch + layout.s, layout.v_pitch, layout.v_width},
        z(scratch + layout.z),
        sum(scratch + layout.sum),
        q_shift(scratch + layout.q_shift),
        k_shift(scratch + layout.k_shift),
        row_d(scratch + layout.row_d),
        row_shift(scratch + layout.row_shift),
        factor(scratch + layout.factor) {}

  int64_t Head(int64_t g) const { return item.kv_head * group + g; }
  RowsOf Queries(const View& view, int64_t g, int64_t n, int64_t count) const {
    return {view, item.b, Head(g), n, count};
  }
  RowsOf Keys(const View& view, int64_t n, int64_t count) const {
    return {view, item.b, item.kv_head, n, count};
  }
  // Of the step's `rows` keys, those that exist.
  int64_t KeysOfStep(int64_t t, int64_t rows) const {
    return std::clamp<int64_t>(walk.used_keys - walk.absorbed - t, 0, rows);
  }

  // Both tiles of `count` keys. False if a value is not finite: 0 times it is no longer 0, so rows
  // that do not see it must not share a product with rows that do.
  bool LoadKeys(int64_t n, int64_t count) {
    const bool finite = LoadFeatures(params.map, Keys(problem.k, n, count), k, k_shift);
    return LoadRows(Keys(problem.v, n, count), v) && finite;
  }

  // RowShift(i) becomes the shift of all that row i of the step sees; entry 0 is the state's.
  void ComputeRowShifts(int64_t rows, int64_t keys) {
    row_shift[0] = shift;
    for (int64_t i = 0; i < rows; ++i) {
      row_shift[i + 1] = i < keys ? std::max(row_shift[i], k_shift[i]) : row_shift[i];
    }
  }
  float RowShift(int64_t i) const { return row_shift[i + 1]; }

  // row_d[i] = phi_q,i . (z + the features of the step's keys up to i), relative to e^RowShift(i).
  // The sum within the step starts from 0 and meets z, which may be large, only in the result.
  void ComputeRowNormalisers(int64_t rows, int64_t keys) {
    const DF d;
    std::fill(sum, sum + k.width, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      if (shifted) ScaleRow(ShiftFactor(row_shift[i], RowShift(i)), sum, k.width);
      if (i < keys) {
        AddRow(shifted ? ShiftFactor(k_shift[i], RowShift(i)) : 1.0f, k.Row(i), sum, k.width);
      }
      const VF carried = hn::Set(d, shifted ? ShiftFactor(shift, RowShift(i)) : 1.0f);
      VF total = hn::Zero(d);
      for (int64_t c = 0; c < k.width; c += kLanes) {
        const VF prefix = hn::MulAdd(carried, hn::LoadU(d, z + c), hn::LoadU(d, sum + c));
        total = hn::MulAdd(hn::LoadU(d, q.Row(i) + c), prefix, total);
      }
      row_d[i] = hn::GetLane(hn::SumOfLanes(d, total));
    }
  }

  // normalize: what turns the sum over values into the output.
  float Reciprocal(float d) const {
    const float den = shifted ? d : d + static_cast<float>(params.eps);
    return den == 0 ? 0.0f : 1.0f / den;
  }
  // Not normalize: the logarithm of what turns row i's sum over values into the output. The factor
  // itself may be beyond float32 where its product with the sum is not.
  double LogScale(int64_t i) const {
    return log_scale + (shifted ? static_cast<double>(q_shift[i]) + RowShift(i) : 0.0);
  }

  // Row i of a product over keys j <= i: puts the weights e^(k_shift_j - RowShift(i)) in and zeroes
  // what lies after the diagonal, up to `columns`.
  void MaskRow(int64_t i, int64_t columns, float* product) {
    const DF d;
    if (shifted) {
      if (RowShift(i) == kNothing) return std::fill(product, product + columns, 0.0f);
      for (int64_t j = 0; j < columns; j += kLanes) {
        const VF exponent = hn::Sub(hn::LoadU(d, k_shift + j), hn::Set(d, RowShift(i)));
        const VF weighted = hn::Mul(ExpNegative(d, exponent), hn::LoadU(d, product + j));
        hn::StoreU(weighted, d, product + j);
      }
    }
    for (int64_t j = i + 1; j < columns; ++j) product[j] = 0.0f;
  }

  // factor[i] = what turns a product with the state into one relative to e^RowShift(i).
  void ComputeStateFactors(int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) factor[i] = ShiftFactor(shift, RowShift(i));
  }

  // z += weight_i * row i of x; no weights: 1.
  void AddRows(int64_t count, const float* weight, const Tile& x, float* z_sum) {
    const DF d;
    for (int64_t c = 0; c < x.width; c += kLanes) {
      VF total = hn::Zero(d);
      for (int64_t i = 0; i < count; ++i) {
        const VF w = hn::Set(d, weight == nullptr ? 1.0f : weight[i]);
        total = hn::MulAdd(w, hn::LoadU(d, x.Row(i) + c), total);
      }
      hn::StoreU(hn::Add(hn::LoadU(d, z_sum + c), total), d, z_sum + c);
    }
  }

  // Takes the loaded keys into z and into `state`, which is s or its transpose of M rows.
  void Absorb(int64_t count, const Tile& state, int64_t M, bool transposed) {
    if (shifted) {
      const float next = std::max(shift, *std::max_element(k_shift, k_shift + count));
      const float old = ShiftFactor(shift, next);
      for (int64_t i = 0; i < M; ++i) ScaleRow(old, state.Row(i), state.width);
      ScaleRow(old, z, k.width);
      for (int64_t j = 0; j < count; ++j) factor[j] = ShiftFactor(k_shift[j], next);
      ScaleRows(factor, count, k);
      shift = next;
    }
    AddRows(count, nullptr, k, z);
    if (transposed) {
      Gemm<Start::kAddLast>(M, state.width, count, v.Down(), k.Read(), state.Write());
    } else {
      Gemm<Start::kAddLast>(M, state.width, count, k.Down(), v.Read(), state.Write());
    }
  }
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
