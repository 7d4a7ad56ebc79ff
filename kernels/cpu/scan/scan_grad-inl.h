// The gradients of one scan item (R7 of the specification). With what a token writes, u_t = b_t v_t
// (delta: b_t error_t), and R_t the gradient of the state after key t,
//   dphi_q,i = S_i dN_i + z_i dD_i                 dphi_k,t = R_t u_t + b_t r_t - S'_t du_t (delta)
//   du_t = R_t^T phi_k,t,  dv_t = b_t du_t         dbeta_t = du_t . v_t (error_t) + r_t . phi_k,t
// where S', the state before the key, and the last term belong to the delta rule, for which
// R_(t-1) = a_t (R_t - phi_k,t dv_t^T) + .. as well. Prefix states run forward, R runs backward; no
// key is ever subtracted from a state to walk back.
#if defined(ATTND_CPU_SCAN_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_INL_H_
#undef ATTND_CPU_SCAN_GRAD_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_INL_H_
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
  float* const x;
  float* const lifts;         // null: all are 0
  const float* const shifts;  // after each key, null: all are 0
  float lift = 0;             // of R

  GradCore(const ScanItem& work, float* scratch)
      : ScanCore(work, scratch),
        grad(*work.grad),
        kept(work),
        dphi{scratch + layout.dphi, layout.q_pitch, layout.q_width},
        x(scratch + layout.x),
        lifts(ScanKept::Lifts(params) ? work.kept + kept.lift : nullptr),
        shifts(shifted ? work.kept + kept.shift : nullptr) {}

  float* ToNum(int64_t g, int64_t i) const {
    return item.kept + kept.to_num + g * kept.queries + i;
  }
  float* ToD(int64_t g, int64_t i) const { return item.kept + kept.to_d + g * kept.queries + i; }
  float* LiftOf(int64_t g, int64_t i) const { return lifts + g * kept.queries + i; }

  // dN of the block's queries, from columns `dout`, in o; relative to e^lift, or each to its own.
  void LoadGradients(const View& dout, const ScanBlock& at, bool own_lift) {
    for (int64_t g = 0; g < group && at.queries > 0; ++g) {
      const Tile dn = OfHead(o, g);
      if (dout.given()) {
        LoadRows(Queries(dout, g, at), dn);
      } else {
        ZeroTile(dn, at.queries);
      }
      ScaleRows(ToNum(g, at.q), at.queries, dn);
      for (int64_t t = 0; t < at.queries; ++t) {
        row_d[g * block + t] = *ToD(g, at.q + t);
        if (lifts == nullptr || own_lift) continue;
        const float ratio = std::exp(*LiftOf(g, at.q + t) - lift);
        ScaleRow(ratio, dn.Row(t), dn.width);
        row_d[g * block + t] *= ratio;
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

  // Rows of a tile from the last token to the first.
  Series Backwards(const Tile& tile, const ScanBlock& at) const {
    return {.data = tile.Row(at.count() - 1), .term = block * tile.pitch, .token = -tile.pitch};
  }
  // Floats [keys, Dv] or [keys, D] in kept memory.
  float* KeptRow(int64_t at, int64_t pitch, int64_t n) const { return item.kept + at + n * pitch; }
};

// ScanJob::kRows: to_num, to_d, lifts, shifts.
class ScanGradRows : private GradCore {
 public:
  ScanGradRows(const ScanItem& work, float* scratch) : GradCore(work, scratch) {}

  void Run() {
    StartNormaliser();
    walk.ForEachBlock(block, /*reverse=*/false, [&](const ScanBlock& at, const ScanBlock& next) {
      FetchFeatures(next);
      FetchQueries(grad.dout, next);
      FetchQueries(problem.out, next);
      ahead.Rest();
      LoadQueries(at);
      LoadKeys(at);
      Normalise(at);
      if (shifted) KeepShifts(at);
      for (int64_t g = 0; g < group && at.queries > 0; ++g) RowsOfHead(g, at);
    });
  }

 private:
  // Keys that all queries see get the one shift that all of them together have.
  void KeepShifts(const ScanBlock& at) {
    float* to = item.kept + kept.shift;
    if (at.queries > 0) {
      std::copy_n(row_shift + 1, at.keys, to + at.k);
    } else {
      std::fill(to, to + at.k + at.keys, shift);
    }
  }

  void RowsOfHead(int64_t g, const ScanBlock& at) {
    const Tile dn = OfHead(o, g), out = {v.data, v.pitch, v.width};
    if (grad.dout.given()) {
      LoadRows(Queries(grad.dout, g, at), dn);
      LoadRows(Queries(problem.out, g, at), out);
    } else {
      ZeroTile(dn, at.queries);
      ZeroTile(out, at.queries);
    }
    const RowsOf dlse = Queries(grad.dlse, g, at);
    for (int64_t t = 0; t < at.queries; ++t) {
      const int64_t row = g * block + t;
      const float d = row_d[row];
      const float of_lse = !grad.dlse.given() || d <= 0 ? 0.0f : dlse.Float(t) / d;
      float to_num, to_d = of_lse;
      if (params.den != ScanDen::kOne) {
        to_num = Reciprocal(d);
        const float slope = DenSlope(d);
        if (to_num != 0 && slope != 0) {
          to_d -= slope * Dot(dn.Row(t), out.Row(t), out.width) / Den(d);
        }
      } else if (!shifted) {
        to_num = static_cast<float>(params.scale);
      } else {
        const bool blank = IsZero(dn.Row(t), layout.Dv);
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

// ScanJob::kErrors: error_t of the delta rule, for columns.
class ScanGradErrors : private GradCore {
 public:
  ScanGradErrors(const ScanItem& work, float* scratch)
      : GradCore(work, scratch),
        Dv_(work.end - work.begin),
        values_(Columns(problem.v, work.begin, work.end)),
        s0_(Columns(problem.s0, work.begin, work.end)) {
    v.width = ScanWidth::Of(Dv_);
  }

  void Run() {
    const Tile state = {s, layout.v_pitch, v.width};
    LoadState(s0_, state);
    walk.ForEachBlock(block, /*reverse=*/false, [&](const ScanBlock& at, const ScanBlock& next) {
      if (at.keys == 0) return;
      ahead.Clear();
      ahead.Add(Keys(problem.k, next));
      ahead.Add(Keys(values_, next));
      LoadKeys(at);
      LoadRows(Keys(values_, at), v);
      const Series error = {.data = KeptRow(kept.error, kept.v_pitch, at.k) + item.begin,
                            .token = kept.v_pitch};
      RecurDelta(is_decaying ? Decay::kRowsFirst : Decay::kNone, {.tokens = at.keys,
                                                                  .rows = D,
                                                                  .lanes = v.width,
                                                                  .state = state.Write(),
                                                                  .key = RowSeries(k),
                                                                  .value = RowSeries(v),
                                                                  .error = error,
                                                                  .decay = RowSeries(decay),
                                                                  .weight = beta,
                                                                  .ahead = &ahead});
    });
  }

 private:
  const int64_t Dv_;
  const View values_, s0_;
};

// ScanJob::kColumns: du, and with it dv and dbeta.
class ScanGradColumns : private GradCore {
 public:
  ScanGradColumns(const ScanItem& work, float* scratch)
      : GradCore(work, scratch),
        Dv_(work.end - work.begin),
        values_(Columns(problem.v, work.begin, work.end)),
        dout_(Columns(grad.dout, work.begin, work.end)),
        dv_(Columns(grad.dv, work.begin, work.end)),
        state_{s, layout.v_pitch, ScanWidth::Of(Dv_)} {
    v.width = o.width = state_.width;
  }

  void Run() {
    LoadState(Columns(grad.ds_out, item.begin, item.end), state_);
    std::fill_n(z, k.width, 0.0f);
    for (int64_t c = 0; c < D && grad.dz_out.given(); ++c) {
      z[c] = FloatAt(grad.dz_out, item.b, item.kv_head, c);
    }
    walk.ForEachBlock(block, /*reverse=*/true, [&](const ScanBlock& at, const ScanBlock& next) {
      FetchFeatures(next);
      FetchQueries(dout_, next);
      FetchStored(Keys(dv_, next));
      Step(at);
    });
    const ScanBlock unseen = {.k = walk.used_keys, .keys = problem.k.shape[2] - walk.used_keys};
    if (grad.dv.given()) ZeroRows(Keys(dv_, unseen));
    for (int64_t t = unseen.k; t < unseen.k + unseen.keys && grad.dbeta.given(); ++t) {
      FloatAt(grad.dbeta, item.b, item.kv_head, t) = 0.0f;
    }
  }

 private:
  void Step(const ScanBlock& at) {
    const float ratio = RaiseLift(at);
    for (int64_t c = 0; c < D && ratio != 1; ++c) ScaleRow(ratio, state_.Row(c), state_.width);
    LoadQueries(at);
    LoadKeys(at, shifts);
    LoadGradients(dout_, at, /*own_lift=*/false);
    const Decay how = at.keys > 0 && is_decaying ? Decay::kRowsLast : Decay::kNone;
    if (delta && at.keys > 0) {
      // What comes out as the error of a value of 0 is -du.
      RecurDelta(how, {.tokens = at.count(),
                       .rows = D,
                       .lanes = v.width,
                       .updates = at.queries > 0 ? group : 0,
                       .state = state_.Write(),
                       .left = Backwards(q, at),
                       .right = Backwards(o, at),
                       .key = Backwards(k, at),
                       .error = Backwards(v, at),
                       .decay = Backwards(decay, at),
                       .weight = beta + at.keys - 1,
                       .weight_step = -1,
                       .ahead = &ahead});
      for (int64_t t = 0; t < at.keys; ++t) ScaleRow(-1.0f, v.Row(t), v.width);
    } else {
      Recur(how, {.tokens = at.count(),
                  .rows = D,
                  .lanes = v.width,
                  .updates = at.queries > 0 ? group : 0,
                  .reads = at.keys > 0 ? 1 : 0,
                  .state = state_.Write(),
                  .left = Backwards(q, at),
                  .right = Backwards(o, at),
                  .read = Backwards(k, at),
                  .out = Backwards(v, at),
                  .decay = Backwards(decay, at),
                  .ahead = &ahead});
    }
    ahead.Rest();
    if (grad.dbeta.given()) StoreBetaGradients(at);
    if (at.keys > 0) StoreValueGradients(at);
  }

  void StoreValueGradients(const ScanBlock& at) {
    ScaleByBeta(at, v);
    for (int64_t t = 0; t < at.keys && delta; ++t) {
      std::copy_n(v.Row(t), v.width, KeptRow(kept.dwrite, kept.v_pitch, at.k + t) + item.begin);
    }
    for (int64_t t = 0; t < at.keys && lift != 0; ++t) Lift(lift, v.Row(t), Dv_);
    if (grad.dv.given()) StoreRows(Keys(dv_, at), v);
  }

  // r, in z, runs along. All columns are here: no slices where dbeta is wanted.
  void StoreBetaGradients(const ScanBlock& at) {
    for (int64_t t = at.count() - 1; t >= 0; --t) {
      for (int64_t g = 0; g < group && at.queries > 0; ++g) {
        AddRow(row_d[g * block + t], q.Row(g * block + t), z, k.width);
      }
      if (at.keys == 0) continue;
      const float* written = KeptRow(kept.error, kept.v_pitch, at.k + t);
      if (!delta) {
        Widen(values_.dtype, Keys(values_, at).Row(t), Dv_, x);
        std::fill(x + Dv_, x + v.width, 0.0f);
        written = x;
      }
      FloatAt(grad.dbeta, item.b, item.kv_head, at.k + t) =
          Dot(v.Row(t), written, v.width) + Dot(z, k.Row(t), k.width);
      if (is_decaying) MultiplyRow(decay.Row(t), z, k.width);
    }
  }

  const int64_t Dv_;
  const View values_, dout_, dv_;
  const Tile state_;
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
