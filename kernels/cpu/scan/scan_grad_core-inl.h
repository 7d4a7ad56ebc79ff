// What the gradients of one scan item share (R7 of the specification). With what a token writes,
// u_t = b_t v_t (delta: b_t error_t), and R_t the gradient of the state after key t,
//   dphi_q,i = S_i dN_i + z_i dD_i                 dphi_k,t = R_t u_t + b_t r_t - S'_t du_t (delta)
//   du_t = R_t^T phi_k,t,  dv_t = b_t du_t         dbeta_t = du_t . v_t (error_t) + r_t . phi_k,t
// where S', the state before the key, and the last term belong to the delta rule, for which
// R_(t-1) = a_t (R_t - phi_k,t dv_t^T) + .. as well. Prefix states run forward, R runs backward; no
// key is ever subtracted from a state to walk back.
#if defined(ATTND_CPU_SCAN_GRAD_CORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_CORE_INL_H_
#undef ATTND_CPU_SCAN_GRAD_CORE_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_CORE_INL_H_
#endif

#include "kernels/cpu/scan/scan_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// With dN_i = to_num_i dout_i and dD_i = to_d_i the gradients of num_i and d_i. kExp: features of
// row i are relative to e^(q_shift_i), its sums to e^RowShift(i), and dN_i, dD_i to the inverse of
// both, so every factor that meets is <= 1. Without normalisation dN_i is dout_i times both, which
// may be too large for float32 where the gradients are not: then dN_i and dD_i are relative to
// e^(lift_i), and R to the largest lift so far.
struct GradCore : ScanCore {
  const ScanGradProblem& grad;
  const ScanKept kept;
  const Tile dphi;
  const bool has_dots;    // whether dD_i depends on dout_i . out_i, which is phi_q,i . S_i dN_i
  const bool has_z_flow;  // whether any dD_i differs from 0
  float* const x;
  float* const lifts;         // null: all are 0
  const float* const shifts;  // after each key, null: all are 0
  float lift = 0;             // of R

  GradCore(const ScanItem& work, float* scratch)
      : ScanCore(work, scratch),
        grad(*work.grad),
        kept(work),
        dphi{scratch + layout.dphi, layout.q_pitch, layout.q_width},
        has_dots(ScanKept::HasDots(work)),
        has_z_flow(has_dots || grad.dlse.given()),
        x(scratch + layout.x),
        lifts(ScanKept::Lifts(params) ? work.kept + kept.lift : nullptr),
        shifts(shifted ? work.kept + kept.shift : nullptr) {}

  float* ToNum(int64_t g, int64_t i) const {
    return item.kept + kept.to_num + g * kept.queries + i;
  }
  float* ToD(int64_t g, int64_t i) const { return item.kept + kept.to_d + g * kept.queries + i; }
  float* LiftOf(int64_t g, int64_t i) const { return lifts + g * kept.queries + i; }
  float* SlopeOf(int64_t g, int64_t i) const {
    return item.kept + kept.slope + g * kept.queries + i;
  }
  // Of heads in slices: the parts of row i.
  float* DotsOf(int64_t g, int64_t i) const {
    return item.kept + kept.dots + (g * kept.queries + i) * kept.dots_pitch;
  }

  // dN of the block's queries, from columns `dout`, in o; relative to e^lift, or each to its own.
  void LoadGradients(const View& dout, const ScanBlock& at, bool own_lift) {
    for (int64_t g = 0; g < group && at.queries > 0; ++g) {
      const Tile dn = OfHead(o, g);
      const RowsOf rows = Queries(dout, g, at);
      for (int64_t t = 0; t < at.queries; ++t) {
        const int64_t n = dout.given() ? dout.shape[3] : 0;
        if (n > 0) Widen(dout.dtype, rows.Row(t), n, dn.Row(t), *ToNum(g, at.q + t));
        std::fill(dn.Row(t) + n, dn.Row(t) + dn.width, 0.0f);
      }
      std::copy_n(ToD(g, at.q), at.queries, row_d + g * block);
      // The job that finds them needs no dD, and its slices of features write side by side.
      const bool are_found = kept.dots_pitch > 0 && item.job != ScanJob::kDots;
      for (int64_t t = 0; t < at.queries && are_found; ++t) {
        SubtractDots(g, at.q + t, DotsOf(g, at.q + t), row_d + g * block + t);
      }
      if (!own_lift) ShiftLifts(g, at);
    }
  }
  // From the lift of each row to that of R.
  void ShiftLifts(int64_t g, const ScanBlock& at) {
    for (int64_t t = 0; t < at.queries && lifts != nullptr; ++t) {
      const float ratio = std::exp(*LiftOf(g, at.q + t) - lift);
      ScaleRow(ratio, o.Row(g * block + t), o.width);
      row_d[g * block + t] *= ratio;
    }
  }

  // What dout_i . out_i gives to dD_i, from its parts in order.
  void SubtractDots(int64_t g, int64_t i, const float* dots, float* to) const {
    const float slope = *SlopeOf(g, i);
    if (slope == 0) return;
    float sum = 0;
    for (int64_t c = 0; c < layout.q_width / ScanWidth::kVector; ++c) sum += dots[c];
    *to -= slope * sum;
  }
  // dphi holds S_i dN_i of the block's queries, all features: completes dD.
  void FindDots(const ScanBlock& at) {
    for (int64_t g = 0; g < group && has_dots; ++g) {
      for (int64_t t = 0; t < at.queries; ++t) {
        const int64_t row = g * block + t;
        PartialDots(q.Row(row), dphi.Row(row), layout.q_width, x);
        SubtractDots(g, at.q + t, x, ToD(g, at.q + t));
        row_d[row] = *ToD(g, at.q + t);
      }
    }
  }
  // dphi += z_i dD_i, features [begin, begin + width).
  void AddNormaliserGradients(const ScanBlock& at, int64_t begin, int64_t width) {
    for (int64_t g = 0; g < group && has_z_flow; ++g) {
      for (int64_t t = 0; t < at.queries; ++t) {
        const int64_t row = g * block + t;
        AddRow(row_d[row], seen.Row(t) + begin, dphi.Row(row) + begin, width);
      }
    }
  }

  // row_d as column Dv of o: rows of [dN, dD].
  void AppendGradients(const ScanBlock& at) {
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t t = 0; t < at.queries; ++t) {
        o.Row(g * block + t)[layout.Dv] = row_d[g * block + t];
      }
    }
  }

  // What R must be multiplied with to be relative to the largest lift up to this block, which
  // `lift` becomes.
  float RaiseLift(const ScanBlock& at) {
    if (lifts == nullptr || at.queries == 0) return 1.0f;
    float next = lift;
    for (int64_t g = 0; g < group; ++g) {
      next = std::max(next, *std::max_element(LiftOf(g, at.q), LiftOf(g, at.q) + at.queries));
    }
    const float ratio = std::exp(lift - next);
    lift = next;
    return ratio;
  }

  // Zeros for the queries that read nothing.
  void BlankQueries(const View& dq) const {
    const int64_t end = problem.q.shape[2];
    for (int64_t g = 0; g < group && dq.given(); ++g) {
      ZeroRows(Queries(dq, g, {.q = 0, .queries = walk.first_query}));
      ZeroRows(Queries(dq, g, {.q = walk.end_query, .queries = end - walk.end_query}));
    }
  }
  // Zeros for the keys that no query reads: rows of dk or dv.
  void BlankKeys(const View& to) const {
    const int64_t used = walk.used_keys;
    if (to.given()) ZeroRows(Keys(to, {.k = used, .keys = problem.k.shape[2] - used}));
  }

  // Rows of a tile from the last token to the first.
  Series Backwards(const Tile& tile, const ScanBlock& at) const {
    return {.data = tile.Row(at.count() - 1), .term = block * tile.pitch, .token = -tile.pitch};
  }
  // Floats [keys, Dv] or [keys, D] in kept memory.
  float* KeptRow(int64_t at, int64_t pitch, int64_t n) const { return item.kept + at + n * pitch; }

  // state [Dv + 1, ..] = features [begin, end) of S, transposed, with a last row z; what is not
  // given is 0.
  void LoadTransposed(const View& S, const View& Z, int64_t begin, int64_t end, const Tile& state) {
    ZeroTile(state, layout.Dv + 1);
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t d = 0; d < layout.Dv && S.given(); ++d) {
        state.Row(d)[c - begin] = FloatAt(S, item.b, item.kv_head, c, d);
      }
      if (Z.given()) state.Row(layout.Dv)[c - begin] = FloatAt(Z, item.b, item.kv_head, c);
    }
  }
  // ds0, dz0 from such a state.
  void StoreStates(const Tile& state, int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t d = 0; d < layout.Dv && grad.ds0.given(); ++d) {
        FloatAt(grad.ds0, item.b, item.kv_head, c, d) = state.Row(d)[c - begin];
      }
      if (!grad.dz0.given()) continue;
      FloatAt(grad.dz0, item.b, item.kv_head, c) = state.Row(layout.Dv)[c - begin];
    }
  }

  // What the rows of the block need, whose keys and queries are loaded: to_num, to_d, lifts,
  // shifts.
  void FindRows(const ScanBlock& at) {
    Normalise(at);
    if (shifted) KeepShifts(at);
    for (int64_t g = 0; g < group && at.queries > 0; ++g) FindFactors(g, at);
  }
  // Keys that all queries see get the one shift that all of them together have.
  void KeepShifts(const ScanBlock& at) {
    float* to = item.kept + kept.shift;
    if (at.queries > 0) {
      std::copy_n(row_shift + 1, at.keys, to + at.k);
    } else if (walk.EndsKeys(at)) {
      std::fill(to, to + at.k + at.keys, shift);
    }
  }

  // to_num, to_d without dots, slopes and lifts of the block's queries of head g, whose normalisers
  // are in row_d.
  void FindFactors(int64_t g, const ScanBlock& at) {
    const RowsOf dout = Queries(grad.dout, g, at), dlse = Queries(grad.dlse, g, at);
    for (int64_t t = 0; t < at.queries; ++t) {
      const int64_t row = g * block + t;
      const float d = row_d[row];
      const float of_lse = !grad.dlse.given() || d <= 0 ? 0.0f : dlse.Float(t) / d;
      float to_num, to_d = of_lse;
      if (params.den != ScanDen::kOne) {
        to_num = Reciprocal(d);
        if (has_dots) *SlopeOf(g, at.q + t) = to_num == 0 ? 0.0f : DenSlope(d) / Den(d);
      } else if (!shifted) {
        to_num = static_cast<float>(params.scale);
      } else {
        const bool blank =
            !grad.dout.given() || IsZero(ReadRow(dout, t, v.width, v.Row(0)), layout.Dv);
        const double log_scale = LogScale(q_shift[row] + RowShift(at, t));
        const float own = blank ? 0.0f : LiftFor(log_scale, of_lse != 0);
        *LiftOf(g, at.q + t) = own;
        to_num = blank ? 0.0f : Sign() * static_cast<float>(std::exp(log_scale - own));
        if (own != 0) to_d *= std::exp(-own);
      }
      *ToNum(g, at.q + t) = to_num;
      *ToD(g, at.q + t) = to_d;
    }
  }

  // d den / d d.
  float DenSlope(float d) const {
    const auto eps = static_cast<float>(params.eps);
    if (shifted) return 1.0f;
    if (params.den == ScanDen::kClamp) return d <= eps ? 0.0f : 1.0f;
    if (params.den == ScanDen::kAbsClamp) return std::fabs(d) <= eps ? 0.0f : d < 0 ? -1.0f : 1.0f;
    return 1.0f;
  }

  static bool IsZero(const float* row, int64_t width) {
    return std::all_of(row, row + width, [](float value) { return value == 0; });
  }

  // Leaves room for the products with dN. A gradient of lse is divided by e^lift and must survive.
  static float LiftFor(double log_scale, bool has_dlse) {
    constexpr double kRoom = 60, kMostWithDlse = 60;
    if (!std::isfinite(log_scale)) return 0.0f;
    const double lift = std::max(log_scale - kRoom, 0.0);
    return static_cast<float>(has_dlse ? std::min(lift, kMostWithDlse) : lift);
  }
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
