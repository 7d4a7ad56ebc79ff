// ScanJob::kBackward where all queries read the state after all keys: one R serves all keys, so
// that three walks do the work of all jobs. Keys make S and z; queries make dq and R; keys make dk
// and dv. Numbers are those of the jobs in slices: products take the same blocks in the same order.
#if defined(ATTND_CPU_SCAN_GRAD_FULL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_FULL_INL_H_
#undef ATTND_CPU_SCAN_GRAD_FULL_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_FULL_INL_H_
#endif

#include "kernels/cpu/scan/scan_grad_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

class ScanGradFull : private GradCore {
 public:
  ScanGradFull(const ScanItem& work, float* scratch)
      : GradCore(work, scratch),
        Dv_(layout.Dv),
        keys_wanted_(WantsKeys(grad)),
        reads_(grad.dq.given() || (has_dots && keys_wanted_)),
        state_{s, layout.q_pitch, layout.q_width},
        r_{scratch + layout.r, layout.q_pitch, layout.q_width},
        r_columns_{s, layout.v_pitch, layout.v_width} {}

  void Run() {
    StartNormaliser();
    if (reads_) LoadTransposed(problem.s0, /*Z=*/{}, 0, D, state_);
    walk.Keys().ForEachBlock(block, /*reverse=*/false,
                             [&](const ScanBlock& at, const ScanBlock& next) {
                               FetchKeys(next);
                               AddKeys(at);
                             });
    if (shifted) std::fill_n(item.kept + kept.shift, walk.used_keys, shift);

    ZeroTile(r_, Dv_ + 1);
    walk.Queries().ForEachBlock(block, /*reverse=*/true,
                                [&](const ScanBlock& at, const ScanBlock& next) {
                                  FetchFeatures(next);
                                  FetchQueries(grad.dout, next);
                                  for (int64_t g = 0; g < group; ++g) {
                                    FetchStored(Queries(grad.dq, g, next));
                                  }
                                  TakeQueries(at);
                                });

    // S has been read.
    if (grad.dv.given()) {
      Transpose(r_.data, r_.pitch, Dv_, D, r_columns_.data, r_columns_.pitch);
    }
    walk.Keys().ForEachBlock(block, /*reverse=*/false,
                             [&](const ScanBlock& at, const ScanBlock& next) {
                               FetchKeys(next);
                               FetchStored(Keys(grad.dk, next));
                               FetchStored(Keys(grad.dv, next));
                               StoreKeys(at);
                             });
    StoreStates(r_, 0, D);
    BlankQueries(grad.dq);
    BlankKeys(grad.dk);
    BlankKeys(grad.dv);
  }

 private:
  void FetchKeys(const ScanBlock& next) {
    FetchFeatures(next);
    ahead.Add(Keys(problem.v, next));
  }

  void AddKeys(const ScanBlock& at) {
    LoadKeys(at);
    Normalise(at);
    if (!reads_) return;
    Rise(Dv_, state_);
    Recur(Decay::kNone, {.tokens = at.keys,
                         .rows = Dv_,
                         .lanes = state_.width,
                         .updates = 1,
                         .state = state_.Write(),
                         .left = RowSeries(ReadRows(Keys(problem.v, at), v)),
                         .right = RowSeries(k),
                         .ahead = &ahead});
    ahead.Rest();
  }

  void TakeQueries(const ScanBlock& at) {
    LoadQueries(at);
    LoadKeys(at);
    Normalise(at);
    for (int64_t g = 0; g < group; ++g) FindFactors(g, at);
    LoadGradients(grad.dout, at, /*own_lift=*/true);
    if (reads_) {
      Recur(Decay::kNone, {.tokens = at.queries,
                           .rows = Dv_,
                           .lanes = state_.width,
                           .reads = group,
                           .state = state_.Write(),
                           .read = RowSeries(o),
                           .out = RowSeries(dphi),
                           .ahead = &ahead});
      FindDots(at);
      AddNormaliserGradients(at, 0, dphi.width);
      for (int64_t g = 0; g < group && grad.dq.given(); ++g) {
        StoreThroughMap(params.map, Queries(grad.dq, g, at), problem.q, OfHead(q, g),
                        OfHead(dphi, g), x, lifts == nullptr ? nullptr : LiftOf(g, at.q));
      }
    }
    if (keys_wanted_ || grad.dv.given()) AddGradients(at);
    ahead.Rest();
  }

  // R += phi_q [dN, dD].
  void AddGradients(const ScanBlock& at) {
    const float ratio = RaiseLift(at);
    for (int64_t c = 0; c <= Dv_ && ratio != 1; ++c) ScaleRow(ratio, r_.Row(c), r_.width);
    for (int64_t g = 0; g < group; ++g) ShiftLifts(g, at);
    AppendGradients(at);
    Recur(Decay::kNone, {.tokens = at.queries,
                         .rows = Dv_ + 1,
                         .lanes = r_.width,
                         .updates = group,
                         .state = r_.Write(),
                         .left = Backwards(o, at),
                         .right = Backwards(q, at),
                         .ahead = &ahead});
  }

  void StoreKeys(const ScanBlock& at) {
    LoadKeys(at, shifts);
    if (grad.dk.given()) {
      LoadRows(Keys(problem.v, at), v);
      for (int64_t t = 0; t < at.keys; ++t) v.Row(t)[Dv_] = 1.0f;
      Recur(Decay::kNone, {.tokens = at.keys,
                           .rows = Dv_ + 1,
                           .lanes = r_.width,
                           .reads = 1,
                           .state = r_.Write(),
                           .read = RowSeries(v),
                           .out = RowSeries(dphi),
                           .ahead = &ahead});
      std::fill_n(factor, at.keys, lift);
      StoreThroughMap(params.map, Keys(grad.dk, at), problem.k, k, dphi, x, factor);
    }
    if (grad.dv.given()) {
      Recur(Decay::kNone, {.tokens = at.keys,
                           .rows = D,
                           .lanes = r_columns_.width,
                           .reads = 1,
                           .state = r_columns_.Write(),
                           .read = RowSeries(k),
                           .out = RowSeries(o),
                           .ahead = &ahead});
      for (int64_t t = 0; t < at.keys && lift != 0; ++t) Lift(lift, o.Row(t), Dv_);
      StoreRows(Keys(grad.dv, at), o);
    }
    ahead.Rest();
  }

  const int64_t Dv_;
  const bool keys_wanted_;
  const bool reads_;      // whether queries read S
  const Tile state_, r_;  // transposed: [Dv, D] and, with a last row r, [Dv + 1, D]
  const Tile r_columns_;  // [D, Dv], where state_ lies
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
