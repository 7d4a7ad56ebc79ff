// Gradients of the values, a part of the backward of scan.
#if defined(ATTND_CPU_SCAN_GRAD_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_COLUMNS_INL_H_
#undef ATTND_CPU_SCAN_GRAD_COLUMNS_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_COLUMNS_INL_H_
#endif

#include "kernels/cpu/scan/scan_grad_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// R of columns [begin, end): du, and with it dv and dbeta.
class GradColumns {
 public:
  // state: [D, v_pitch] floats of scratch.
  GradColumns(GradCore* core, int64_t begin, int64_t end, float* state)
      : core_(*core),
        begin_(begin),
        Dv_(end - begin),
        values_(Columns(core->problem.v, begin, end)),
        dout_(Columns(core->grad.dout, begin, end)),
        dv_(Columns(core->grad.dv, begin, end)),
        state_{state, core->layout.v_pitch, ScanWidth::Of(Dv_)} {}

  int64_t width() const { return state_.width; }
  const View& dout() const { return dout_; }
  const View& dv() const { return dv_; }

  void Start() {
    core_.LoadState(Columns(core_.grad.ds_out, begin_, begin_ + Dv_), state_);
    std::fill_n(core_.z, core_.k.width, 0.0f);
    for (int64_t c = 0; c < core_.D && core_.grad.dz_out.given(); ++c) {
      core_.z[c] = FloatAt(core_.grad.dz_out, core_.item.b, core_.item.kv_head, c);
    }
  }

  // Blocks come in reverse. Their queries, keys and dN are loaded, decays found, dN taken into
  // runs; v is scratch. `ratio`: of lifts.
  void Step(const ScanBlock& at, Decay how, float ratio) {
    for (int64_t c = 0; c < core_.D && ratio != 1; ++c) {
      ScaleRow(ratio, state_.Row(c), state_.width);
    }
    if (core_.delta && at.keys > 0) {
      // What comes out as the error of a value of 0 is -du.
      RecurDelta(how, {.tokens = at.count(),
                       .rows = core_.D,
                       .lanes = state_.width,
                       .updates = at.queries > 0 ? core_.group : 0,
                       .state = state_.Write(),
                       .left = core_.Backwards(core_.q, at),
                       .right = core_.Backwards(core_.o, at),
                       .key = core_.Backwards(core_.k, at),
                       .error = core_.Backwards(core_.v, at),
                       .decay = core_.Backwards(core_.decay, at),
                       .weight = core_.beta + at.keys - 1,
                       .weight_step = -1,
                       .ahead = &core_.ahead});
      for (int64_t t = 0; t < at.keys; ++t) ScaleRow(-1.0f, core_.v.Row(t), state_.width);
    } else {
      Recur(how, {.tokens = at.count(),
                  .rows = core_.D,
                  .lanes = state_.width,
                  .updates = at.queries > 0 ? core_.group : 0,
                  .reads = at.keys > 0 ? 1 : 0,
                  .state = state_.Write(),
                  .left = core_.Backwards(core_.q, at),
                  .right = core_.Backwards(core_.o, at),
                  .read = core_.Backwards(core_.k, at),
                  .out = core_.Backwards(core_.v, at),
                  .decay = core_.Backwards(core_.decay, at),
                  .runs = &core_.runs,
                  .ahead = &core_.ahead});
      core_.OutOfRuns(at, core_.v, 1);
    }
    if (core_.grad.dbeta.given()) StoreBetaGradients(at);
    if (at.keys > 0) StoreValueGradients(at);
  }

  // What no query reads.
  void Finish() {
    core_.BlankKeys(dv_);
    const int64_t used = core_.walk.used_keys, Nk = core_.problem.k.shape[2];
    for (int64_t t = used; t < Nk && core_.grad.dbeta.given(); ++t) {
      FloatAt(core_.grad.dbeta, core_.item.b, core_.item.kv_head, t) = 0.0f;
    }
  }

 private:
  void StoreValueGradients(const ScanBlock& at) {
    core_.ScaleByBeta(at, core_.v);
    for (int64_t t = 0; t < at.keys && core_.delta; ++t) {
      float* kept = core_.KeptRow(core_.kept.dwrite, core_.kept.v_pitch, at.k + t) + begin_;
      std::copy_n(core_.v.Row(t), state_.width, kept);
    }
    for (int64_t t = 0; t < at.keys && core_.lift != 0; ++t) Lift(core_.lift, core_.v.Row(t), Dv_);
    if (core_.grad.dv.given()) StoreRows(core_.Keys(dv_, at), core_.v);
  }

  // r, in z, runs along. All columns are here: no slices where dbeta is wanted.
  void StoreBetaGradients(const ScanBlock& at) {
    for (int64_t t = at.count() - 1; t >= 0; --t) {
      for (int64_t g = 0; g < core_.group && at.queries > 0; ++g) {
        const int64_t row = g * core_.block + t;
        AddRow(core_.row_d[row], core_.q.Row(row), core_.z, core_.k.width);
      }
      if (at.keys == 0) continue;
      const float* written = core_.KeptRow(core_.kept.error, core_.kept.v_pitch, at.k + t);
      if (!core_.delta) {
        written = ReadRow(core_.Keys(values_, at), t, state_.width, core_.x);
      }
      FloatAt(core_.grad.dbeta, core_.item.b, core_.item.kv_head, at.k + t) =
          Dot(core_.v.Row(t), written, state_.width) + Dot(core_.z, core_.k.Row(t), core_.k.width);
      if (core_.is_decaying) core_.DecayBy(t, core_.z);
    }
  }

  GradCore& core_;
  const int64_t begin_, Dv_;
  const View values_, dout_, dv_;
  const Tile state_;
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
