// The gradients of one scan item (R7 of the specification): prefix states give dq, suffix sums give
// dk and dv; no key is ever subtracted from a state.
#if defined(ATTND_CPU_SCAN_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_INL_H_
#undef ATTND_CPU_SCAN_GRAD_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_INL_H_
#endif

#include "kernels/cpu/scan_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// With dN_i = to_num_i dout_i and dD_i = to_d_i, the gradients of num_i and d_i:
//   dphi_q,i = sum_{j seen by i} (dN_i . v_j + dD_i) phi_k,j
//   dphi_k,j = sum_{i sees j} (dN_i . v_j + dD_i) phi_q,i        dv_j = sum_{i sees j} A_ij dN_i
// kExp: features of row i are relative to e^(q_shift_i), its sums to e^RowShift(i), and dN_i, dD_i
// to the inverse of both, so every factor that meets is <= 1. Without normalisation dN_i is dout_i
// times both, which may be too large for float32 where the gradients are not: then dN_i and dD_i
// are relative to e^(lift_i), and the sums over queries to the largest lift so far.
class ScanGrad : private ScanCore {
 public:
  ScanGrad(const ScanItem& work, float* scratch)
      : ScanCore(work, scratch),
        grad_(*work.grad),
        dphi_{scratch + layout.dphi, layout.q_pitch, layout.q_width},
        dn_{scratch + layout.dn, layout.v_pitch, layout.v_width},
        vt_{scratch + layout.vt, layout.c_pitch, layout.c_pitch},
        p_{scratch + layout.p, layout.c_pitch, layout.c_pitch},
        st_{scratch + layout.st, layout.q_pitch, layout.q_width},
        x_(scratch + layout.x),
        to_num_(scratch + layout.to_num),
        to_d_(scratch + layout.to_d),
        lift_(ScanLayout::Lifts(params) ? scratch + layout.lift : nullptr),
        shifts_(scratch + layout.shifts),
        mixed_(scratch + layout.mixed) {}

  void Run() {
    SweepForward();
    if (grad_.dk.data != nullptr || grad_.dv.data != nullptr) SweepBackward();
    for (int64_t g = 0; g < group && grad_.dq.data != nullptr; ++g) {
      ZeroRows(Queries(grad_.dq, g, 0, walk.first_query));
      ZeroRows(Queries(grad_.dq, g, walk.end_query, problem.q.shape[2] - walk.end_query));
    }
    const int64_t unseen = problem.k.shape[2] - walk.used_keys;
    if (grad_.dk.data != nullptr) ZeroRows(Keys(grad_.dk, walk.used_keys, unseen));
    if (grad_.dv.data != nullptr) ZeroRows(Keys(grad_.dv, walk.used_keys, unseen));
  }

 private:
  float* ToNum(int64_t g, int64_t t) const { return to_num_ + g * layout.queries + t; }
  float* ToD(int64_t g, int64_t t) const { return to_d_ + g * layout.queries + t; }

  float* LiftOf(int64_t g, int64_t t) const { return lift_ + g * layout.queries + t; }

  // --- forward over the sequence: prefix states, to_num, to_d, dq ---

  void SweepForward() {
    std::fill(z, z + k.width, 0.0f);
    std::fill(mixed_, mixed_ + layout.queries / layout.block + 1, 0.0f);
    ZeroTile(st_, Dv);
    for (int64_t n = 0; n < walk.absorbed; n += kScanBlock) {
      const int64_t count = std::min(kScanBlock, walk.absorbed - n);
      LoadKeys(n, count);
      Absorb(count, st_, Dv, /*transposed=*/true);
    }
    shifts_[0] = shift;
    for (int64_t t = 0; t < walk.steps(); t += layout.block) {
      QueryStep(t, std::min(layout.block, walk.steps() - t));
    }
  }

  void QueryStep(int64_t t, int64_t rows) {
    const int64_t keys = KeysOfStep(t, rows);
    if (keys > 0) {
      const bool finite = LoadKeys(walk.absorbed + t, keys);
      if (!finite && rows > 1) {
        mixed_[t / layout.block] = 1;
        for (int64_t i = 0; i < rows; ++i) QueryStep(t + i, 1);
        return;
      }
      Transpose(v.data, v.pitch, keys, Dv, vt_.data, vt_.pitch);
    }
    ComputeRowShifts(rows, keys);
    std::copy(row_shift + 1, row_shift + 1 + rows, shifts_ + 1 + t);
    ComputeStateFactors(rows);
    for (int64_t g = 0; g < group; ++g) {
      const bool finite = LoadQueryGradients(g, t, rows, keys);
      if (!finite) mixed_[t / layout.block] = 1;
      if (grad_.dq.data != nullptr) StoreQueryGradients(g, t, rows, keys);
    }
    if (keys > 0) Absorb(keys, st_, Dv, /*transposed=*/true);
  }

  // Fills q, dn, to_num and to_d of a head's step. Returns whether all is finite.
  bool LoadQueryGradients(int64_t g, int64_t t, int64_t rows, int64_t keys) {
    const int64_t n = walk.first_query + t;
    bool finite = LoadFeatures(params.map, Queries(problem.q, g, n, rows), q, q_shift);
    ComputeRowNormalisers(rows, keys);
    LoadOutputGradients(g, n, rows);
    LoadRows(Queries(problem.out, g, n, rows), o);
    const RowsOf dlse = Queries(grad_.dlse, g, n, rows);
    for (int64_t i = 0; i < rows; ++i) {
      const float d = row_d[i];
      const float of_lse = grad_.dlse.data == nullptr || d <= 0 ? 0.0f : dlse.Float(i) / d;
      float to_num, to_d = of_lse;
      if (params.den != ScanDen::kOne) {
        to_num = Reciprocal(d);
        if (to_num != 0) to_d -= Dot(dn_.Row(i), o.Row(i), o.width) * to_num;
      } else {
        const bool blank = IsZero(dn_.Row(i), Dv);
        const float lift = lift_ == nullptr || blank ? 0.0f : LiftFor(LogScale(i), of_lse != 0);
        if (lift_ != nullptr) LiftOf(g, t)[i] = lift;
        to_num = blank ? 0.0f : static_cast<float>(std::exp(LogScale(i) - lift));
        if (lift != 0) to_d *= std::exp(-lift);
      }
      ToNum(g, t)[i] = to_num;
      ToD(g, t)[i] = to_d;
      ScaleRow(to_num, dn_.Row(i), dn_.width);
      finite = finite && std::isfinite(to_d) && !HasNonFinite(dn_.Row(i), Dv);
    }
    return finite;
  }

  static bool IsZero(const float* x, int64_t width) {
    return std::all_of(x, x + width, [](float value) { return value == 0; });
  }

  // Leaves room for the products with dN. A gradient of lse is divided by e^lift and must survive.
  static float LiftFor(double log_scale, bool has_dlse) {
    constexpr double kRoom = 60, kMostWithDlse = 60;
    if (!std::isfinite(log_scale)) return 0.0f;
    const double lift = std::max(log_scale - kRoom, 0.0);
    return static_cast<float>(has_dlse ? std::min(lift, kMostWithDlse) : lift);
  }

  void LoadOutputGradients(int64_t g, int64_t n, int64_t rows) {
    if (grad_.dout.data == nullptr) {
      ZeroTile(dn_, rows);
    } else {
      LoadRows(Queries(grad_.dout, g, n, rows), dn_);
    }
  }

  void StoreQueryGradients(int64_t g, int64_t t, int64_t rows, int64_t keys) {
    const float* to_d = ToD(g, t);
    ZeroTile(dphi_, rows);
    for (int64_t i = 0; i < rows; ++i) AddRow(to_d[i], z, dphi_.Row(i), dphi_.width);
    Gemm<Start::kAdd>(rows, dphi_.width, Dv, dn_.Across(), st_.Read(), dphi_.Write());
    if (shifted) ScaleRows(factor, rows, dphi_);
    for (int64_t i = 0; i < rows && keys > 0; i += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - i);
      const int64_t seen = ScoreGradients(i, count, keys, to_d);
      Gemm<Start::kAdd>(count, dphi_.width, seen, p_.Across(i), k.Read(), dphi_.Write(i));
    }
    const RowsOf to = Queries(grad_.dq, g, walk.first_query + t, rows);
    StoreThroughMap(params.map, to, problem.q, q, dphi_, x_,
                    lift_ == nullptr ? nullptr : LiftOf(g, t));
  }

  // Rows [i, i + count) of p: dN v^T + dD, 0 after the diagonal. Returns the columns written.
  int64_t ScoreGradients(int64_t i, int64_t count, int64_t keys, const float* to_d) {
    const int64_t seen = std::min(keys, i + count);
    const int64_t columns = RoundUpTo(seen, kLanes);
    Gemm<Start::kZero>(count, columns, Dv, dn_.Across(i), vt_.Read(), p_.Write(i));
    for (int64_t r = i; r < i + count; ++r) {
      for (int64_t j = 0; j < seen; ++j) p_.Row(r)[j] += to_d[r];
      MaskRow(r, seen, p_.Row(r));
    }
    return seen;
  }

  // --- backward over the sequence: suffix sums R (in s) and r (in z), dk, dv ---

  void SweepBackward() {
    std::fill(z, z + k.width, 0.0f);
    ZeroTile(s, D);
    shift = kNothing;
    sum_lift_ = 0.0f;
    for (int64_t t = (walk.steps() - 1) / layout.block * layout.block; t >= 0; t -= layout.block) {
      const int64_t rows = std::min(layout.block, walk.steps() - t);
      if (rows > 0) KeyStep(t, rows);
    }
    Transpose(s.data, s.pitch, D, Dv, st_.data, st_.pitch);
    for (int64_t n = 0; n < walk.absorbed; n += kScanBlock) {
      const int64_t count = std::min(kScanBlock, walk.absorbed - n);
      LoadKeys(n, count);
      ReadSuffix(count);
      StoreKeyGradients(n, count);
    }
  }

  void KeyStep(int64_t t, int64_t rows) {
    if (mixed_[t / layout.block] != 0 && rows > 1) {
      for (int64_t i = rows - 1; i >= 0; --i) KeyStep(t + i, 1);
      return;
    }
    const int64_t keys = KeysOfStep(t, rows);
    std::copy(shifts_ + t, shifts_ + t + rows + 1, row_shift);
    Rebase(row_shift[rows]);
    if (lift_ != nullptr) AlignLifts(t, rows);
    if (keys > 0) {
      LoadKeys(walk.absorbed + t, keys);
      Transpose(k.data, k.pitch, keys, D, kt.data, kt.pitch);
      Transpose(v.data, v.pitch, keys, Dv, vt_.data, vt_.pitch);
      Transpose(s.data, s.pitch, D, Dv, st_.data, st_.pitch);
      ReadSuffix(keys);
    }
    Rebase(row_shift[0]);
    for (int64_t g = 0; g < group; ++g) KeyStepOfHead(g, t, rows, keys);
    if (keys > 0) StoreKeyGradients(walk.absorbed + t, keys);
  }

  // Makes R and r relative to e^(-next). Going backward shifts fall, so the factor is <= 1.
  void Rebase(float next) {
    if (!shifted) return;
    if (shift != kNothing) {
      const float old = ShiftFactor(next, shift);
      for (int64_t i = 0; i < D; ++i) ScaleRow(old, s.Row(i), s.width);
      ScaleRow(old, z, k.width);
    }
    shift = next;
  }

  // Makes R, r and the step's to_num and to_d relative to the largest lift so far.
  void AlignLifts(int64_t t, int64_t rows) {
    float next = sum_lift_;
    for (int64_t g = 0; g < group; ++g) {
      next = std::max(next, *std::max_element(LiftOf(g, t), LiftOf(g, t) + rows));
    }
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t i = 0; i < rows; ++i) {
        const float ratio = std::exp(LiftOf(g, t)[i] - next);
        ToNum(g, t)[i] *= ratio;
        ToD(g, t)[i] *= ratio;
      }
    }
    if (next == sum_lift_) return;
    const float ratio = std::exp(sum_lift_ - next);
    for (int64_t i = 0; i < D; ++i) ScaleRow(ratio, s.Row(i), s.width);
    ScaleRow(ratio, z, k.width);
    sum_lift_ = next;
  }

  // dphi = r + V R^T and o = K R: what the queries behind this step give to its keys.
  void ReadSuffix(int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) std::copy(z, z + dphi_.width, dphi_.Row(j));
    Gemm<Start::kAdd>(keys, dphi_.width, Dv, v.Across(), st_.Read(), dphi_.Write());
    Gemm<Start::kZero>(keys, o.width, D, k.Across(), s.Read(), o.Write());
    if (!shifted) return;
    for (int64_t j = 0; j < keys; ++j) factor[j] = ShiftFactor(k_shift[j], shift);
    ScaleRows(factor, keys, dphi_);
    ScaleRows(factor, keys, o);
  }

  void KeyStepOfHead(int64_t g, int64_t t, int64_t rows, int64_t keys) {
    const int64_t n = walk.first_query + t;
    LoadFeatures(params.map, Queries(problem.q, g, n, rows), q, q_shift);
    LoadOutputGradients(g, n, rows);
    ScaleRows(ToNum(g, t), rows, dn_);
    if (keys > 0) AddTriangle(ToD(g, t), rows, keys);
    // The first key of all has no key before it that could read the suffix.
    if (walk.absorbed + t == 0) return;
    const float* weight = ToD(g, t);
    if (shifted) {
      for (int64_t i = 0; i < rows; ++i) factor[i] = ShiftFactor(row_shift[0], RowShift(i));
      ScaleRows(factor, rows, dn_);
      for (int64_t i = 0; i < rows; ++i) factor[i] *= weight[i];
      weight = factor;
    }
    AddRows(rows, weight, q, z);
    Gemm<Start::kAddLast>(D, s.width, rows, q.Down(), dn_.Read(), s.Write());
  }

  // Adds what the step's queries give to the keys of the same step: o += A^T dN, dphi += P^T phi_q.
  void AddTriangle(const float* to_d, int64_t rows, int64_t keys) {
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - i);
      const int64_t seen = ScoreGradients(i, count, keys, to_d);
      Gemm<Start::kZero>(count, RoundUpTo(seen, kLanes), D, q.Across(i), kt.Read(), m.Write(i));
      for (int64_t r = i; r < i + count; ++r) MaskRow(r, seen, m.Row(r));
    }
    for (int64_t j = 0; j < keys; j += kRows) {
      const int64_t count = std::min<int64_t>(kRows, keys - j);
      const Broadcast a = {m.Row(j) + j, 1, m.pitch}, p = {p_.Row(j) + j, 1, p_.pitch};
      Gemm<Start::kAdd>(count, o.width, rows - j, a, dn_.Read(j), o.Write(j));
      Gemm<Start::kAdd>(count, dphi_.width, rows - j, p, q.Read(j), dphi_.Write(j));
    }
  }

  void StoreKeyGradients(int64_t n, int64_t count) {
    if (grad_.dk.data != nullptr) {
      std::fill(factor, factor + count, sum_lift_);
      StoreThroughMap(params.map, Keys(grad_.dk, n, count), problem.k, k, dphi_, x_, factor);
    }
    for (int64_t j = 0; j < count && sum_lift_ != 0; ++j) Lift(sum_lift_, o.Row(j), Dv);
    if (grad_.dv.data != nullptr) StoreRows(Keys(grad_.dv, n, count), o);
  }

  const ScanGradProblem& grad_;
  const Tile dphi_, dn_, vt_, p_, st_;
  float *const x_, *const to_num_, *const to_d_, *const lift_, *const shifts_, *const mixed_;
  float sum_lift_ = 0.0f;  // of R and r
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
