// ScanJob::kRows, kErrors, kColumns: what rows need, and gradients of the values.
#if defined(ATTND_CPU_SCAN_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_INL_H_
#undef ATTND_CPU_SCAN_GRAD_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_INL_H_
#endif

#include "kernels/cpu/scan/scan_grad_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

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
      for (int64_t g = 0; g < group && at.queries > 0; ++g) FindFactors(g, at);
    });
  }

 private:
  // Keys that all queries see get the one shift that all of them together have.
  void KeepShifts(const ScanBlock& at) {
    float* to = item.kept + kept.shift;
    if (at.queries > 0) {
      std::copy_n(row_shift + 1, at.keys, to + at.k);
    } else if (walk.EndsKeys(at)) {
      std::fill(to, to + at.k + at.keys, shift);
    }
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
