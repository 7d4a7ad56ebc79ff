// ScanJob::kFeatures: dq, dk, dlog_decay, ds0, dz0 of some features. States lie transposed, [Dv +
// 1, D], the last row being r (and in kept states z), so that a feature is a lane. ScanJob::kDots:
// its walk forward for the dots of some features. ScanJob::kBackward without the delta rule: all
// features; its walk forward does the work of kRows and kDots, its walk back that of kColumns.
#if defined(ATTND_CPU_SCAN_GRAD_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_FEATURES_INL_H_
#undef ATTND_CPU_SCAN_GRAD_FEATURES_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_FEATURES_INL_H_
#endif

#include <optional>

#include "kernels/cpu/scan/scan_grad_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

class ScanGradFeatures : private GradCore {
 public:
  ScanGradFeatures(const ScanItem& work, float* scratch)
      : GradCore(work, scratch),
        width_(ScanWidth::Of(work.end - work.begin)),
        Dv_(layout.Dv),
        whole_(work.job == ScanJob::kBackward),
        is_dots_(work.job == ScanJob::kDots),
        decays_(grad.dlog_decay.given()),
        keys_wanted_(WantsKeys(grad)),
        shared_(decays_ && grad.dlog_decay.shape[3] == 1),
        dv_rows_(OfHead(o, group)),
        state_{s, layout.q_pitch, width_},
        q_(Columns(problem.q, work.begin, work.end)),
        k_(Columns(problem.k, work.begin, work.end)),
        dq_(Columns(grad.dq, work.begin, work.end)),
        dk_(Columns(grad.dk, work.begin, work.end)) {
    if (whole_ && (grad.dv.given() || grad.dbeta.given())) {
      GradCore* core = this;
      columns_.emplace(core, 0, Dv_, scratch + layout.r);
    }
    // A maximum is one of all features.
    if (shifted) return;
    queries_from = q_;
    keys_from = k_;
    first_feature = work.begin;
  }

  void Run() {
    if (whole_ || NeedsStates()) RunForward();
    if (!is_dots_ && (keys_wanted_ || columns_.has_value())) RunBackward();
  }

 private:
  // Whether the walk forward has states to make.
  bool NeedsStates() const {
    const bool of_dots = is_dots_ || (whole_ && has_dots && (keys_wanted_ || grad.dbeta.given()));
    return of_dots || grad.dq.given() || decays_ || (delta && keys_wanted_);
  }
  // The item's features of a tile.
  Tile Mine(const Tile& tile) const { return {tile.data + item.begin, tile.pitch, width_}; }
  float* KeptOfMine(int64_t at, int64_t n) const {
    return KeptRow(at, kept.q_pitch, n) + item.begin;
  }

  void Fetch(const ScanBlock& next) {
    FetchFeatures(next);
    ahead.Add(Keys(problem.v, next));
    FetchQueries(grad.dout, next);
  }

  // [b v, b] of the block's keys, or [b error, b], in v; for the delta rule, [dv, 0] in dv_rows_.
  void LoadWrites(const ScanBlock& at) {
    if (at.keys == 0) return;
    if (!delta) {
      LoadRows(Keys(problem.v, at), v);
    } else {
      for (int64_t t = 0; t < at.keys; ++t) {
        std::copy_n(KeptRow(kept.error, kept.v_pitch, at.k + t), v.width, v.Row(t));
        if (!keys_wanted_) continue;
        std::copy_n(KeptRow(kept.dwrite, kept.v_pitch, at.k + t), v.width, dv_rows_.Row(t));
        dv_rows_.Row(t)[Dv_] = 0.0f;
      }
    }
    ScaleByBeta(at, v);
    for (int64_t t = 0; t < at.keys; ++t) v.Row(t)[Dv_] = beta[t];
  }

  // --- forward over the sequence: prefix states, dq; for the delta rule S' dv ---

  void RunForward() {
    LoadTransposed(problem.s0, /*Z=*/{}, item.begin, item.end, state_);
    StartNormaliser();
    walk.ForEachBlock(block, /*reverse=*/false, [&](const ScanBlock& at, const ScanBlock& next) {
      Fetch(next);
      for (int64_t g = 0; g < group && !is_dots_; ++g) FetchStored(Queries(dq_, g, next));
      ForwardStep(at);
    });
    if (!is_dots_) BlankQueries(dq_);
  }

  void ForwardStep(const ScanBlock& at) {
    LoadQueries(at);
    LoadKeys(at);
    if (whole_) {
      FindRows(at);
    } else if (!is_dots_ && (has_z_flow || decays_)) {
      PassKeys(at, item.begin, item.begin + width_, [](int64_t) {});
    }
    if (!NeedsStates()) return ahead.Rest();
    const Decay how = FindDecay(at, /*reverse=*/false, Decay::kLanesFirst);
    LoadWrites(at);
    IntoRuns(at, {v.data, v.pitch, ScanWidth::Of(Dv_)}, 1);
    LoadGradients(grad.dout, at, /*own_lift=*/true);
    Rise(Dv_, state_);
    // The last term of reads is dv, alone where there are no queries.
    const int64_t of_queries = at.queries > 0 ? group : 0;
    const int64_t of_keys = at.keys > 0 && delta && keys_wanted_ ? 1 : 0;
    const int64_t first = at.queries > 0 ? 0 : group;
    Recur(how, {.tokens = at.count(),
                .rows = Dv_,
                .lanes = width_,
                .updates = at.keys > 0 ? 1 : 0,
                .reads = of_queries + of_keys,
                .state = state_.Write(),
                .left = RowSeries(v),
                .right = RowSeries(Mine(k)),
                .read = RowSeries(OfHead(o, first)),
                .out = RowSeries(Mine(OfHead(dphi, first))),
                .decay = RowSeries(Mine(decay)),
                .runs = &runs,
                .ahead = &ahead});
    ahead.Rest();
    OutOfRuns(at, Mine(dphi), of_queries);
    if (is_dots_) return KeepDots(at);
    if (of_keys > 0) KeepStored(at);
    if (whole_) FindDots(at);
    AddNormaliserGradients(at, item.begin, width_);
    if (decays_) KeepFlow(at);
    for (int64_t g = 0; g < of_queries && grad.dq.given(); ++g) {
      StoreThroughMap(params.map, Queries(dq_, g, at), q_, Mine(OfHead(q, g)),
                      Mine(OfHead(dphi, g)), x, lifts == nullptr ? nullptr : LiftOf(g, at.q));
    }
  }

  void KeepDots(const ScanBlock& at) {
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t t = 0; t < at.queries; ++t) {
        const int64_t row = g * block + t;
        PartialDots(Mine(q).Row(row), Mine(dphi).Row(row), width_,
                    DotsOf(g, at.q + t) + item.begin / ScanWidth::kVector);
      }
    }
  }

  // S'_t dv_t = S_t dv_t - phi_k,t (u_t . dv_t).
  void KeepStored(const ScanBlock& at) {
    for (int64_t t = 0; t < at.keys; ++t) {
      float* row = dphi.Row(group * block + t) + item.begin;
      AddRow(-Dot(v.Row(t), dv_rows_.Row(t), v.width), k.Row(t) + item.begin, row, width_);
      std::copy_n(row, width_, KeptOfMine(kept.stored, at.k + t));
    }
  }

  // The sum of phi_q dphi_q over the heads, and the state where the backward sweep needs it.
  void KeepFlow(const ScanBlock& at) {
    for (int64_t t = 0; t < at.queries && shared_; ++t) {
      float& flow = KeptRow(kept.flow, 1, at.q)[t];
      flow = 0;
      for (int64_t g = 0; g < group; ++g) {
        flow += Dot(q.Row(g * block + t), dphi.Row(g * block + t), width_);
      }
    }
    for (int64_t t = 0; t < at.queries && !shared_; ++t) {
      float* flow = KeptOfMine(kept.flow, at.q + t);
      std::fill_n(flow, width_, 0.0f);
      for (int64_t g = 0; g < group; ++g) {
        const int64_t row = g * block + t;
        AddProduct(q.Row(row) + item.begin, dphi.Row(row) + item.begin, flow, width_);
      }
    }
    if (at.anchor < 0) return;
    for (int64_t r = 0; r < Dv_; ++r) std::copy_n(state_.Row(r), width_, AnchorRow(at.anchor, r));
    std::copy_n(z + item.begin, width_, AnchorRow(at.anchor, Dv_));
  }
  float* AnchorRow(int64_t anchor, int64_t row) const {
    return item.kept + kept.states + anchor * kept.state_floats + row * kept.q_pitch + item.begin;
  }

  // --- backward: R and r, dk, dlog_decay, ds0, dz0 ---

  void RunBackward() {
    LoadTransposed(grad.ds_out, grad.dz_out, item.begin, item.end, state_);
    std::fill_n(sum, width_, 0.0f);
    if (columns_.has_value()) columns_->Start();
    walk.ForEachBlock(block, /*reverse=*/true, [&](const ScanBlock& at, const ScanBlock& next) {
      Fetch(next);
      FetchStored(Keys(dk_, next));
      if (columns_.has_value()) FetchStored(Keys(grad.dv, next));
      BackwardStep(at);
      ahead.Rest();
    });
    if (columns_.has_value()) columns_->Finish();
    if (!keys_wanted_) return;
    BlankKeys(dk_);
    const int64_t Nk = problem.k.shape[2];
    for (int64_t t = walk.used_keys; t < Nk && decays_; ++t) StoreDecayGradient(t, nullptr);
    StoreStates(state_, item.begin, item.end);
  }

  void BackwardStep(const ScanBlock& at) {
    const float ratio = RaiseLift(at);
    LoadQueries(at);
    LoadKeys(at, shifts);
    LoadGradients(grad.dout, at, /*own_lift=*/false);
    const Decay how = FindDecay(at, /*reverse=*/true, Decay::kLanesLast);
    IntoRuns(at, o, at.queries > 0 ? group : 0);
    if (columns_.has_value()) {
      columns_->Step(at, how == Decay::kLanesLast ? Decay::kRowsLast : how, ratio);
    }
    if (!keys_wanted_) return;
    for (int64_t r = 0; r <= Dv_ && ratio != 1; ++r) ScaleRow(ratio, state_.Row(r), width_);
    LoadWrites(at);
    AppendGradients(at);
    for (int64_t row = 0; row < group * block && in_runs && at.queries > 0; ++row) {
      if (row % block < at.queries) o.Row(row)[Dv_] *= runs.inverse[row % block];
    }
    if (decays_ && at.anchor >= 0) StartFlow(at);
    Recurrence r = {.tokens = at.count(),
                    .rows = Dv_ + 1,
                    .lanes = width_,
                    .updates = at.queries > 0 ? group : 0,
                    .reads = at.keys > 0 ? 1 : 0,
                    .state = state_.Write(),
                    .left = Backwards(o, at),
                    .right = Backwards(Mine(q), at),
                    .read = Backwards(v, at),
                    .out = Backwards(Mine(dphi), at),
                    .decay = Backwards(Mine(decay), at),
                    .runs = &runs,
                    .ahead = &ahead};
    if (delta && at.keys > 0) {
      r.after_left = Backwards(dv_rows_, at);
      r.after_right = Backwards(Mine(k), at);
    }
    Recur(how, r);
    if (at.keys == 0) return;
    OutOfRuns(at, Mine(dphi), 1);
    if (decays_) (shared_ ? StoreSharedDecayGradients(at) : StoreDecayGradients(at));
    for (int64_t t = 0; t < at.keys && delta; ++t) {
      AddRow(-1.0f, KeptOfMine(kept.stored, at.k + t), dphi.Row(t) + item.begin, width_);
    }
    if (!grad.dk.given()) return;
    std::fill_n(factor, at.keys, lift);
    StoreThroughMap(params.map, Keys(dk_, at), k_, Mine(k), Mine(dphi), x, factor);
  }

  // The sum of dS' S' after the block, by feature or of all, from the states that are kept there.
  void StartFlow(const ScanBlock& at) {
    std::fill_n(sum, width_, 0.0f);
    total_ = 0;
    for (int64_t r = 0; r <= Dv_; ++r) {
      const float *state = state_.Row(r), *kept_state = AnchorRow(at.anchor, r);
      if (shared_) {
        total_ += Dot(state, kept_state, width_);
      } else {
        AddProduct(state, kept_state, sum, width_);
      }
    }
  }

  // <dS', S'> of key t from that of key t + 1: what queries read there comes in, what the key wrote
  // goes. It starts anew from the states where those are kept, so that no error adds up. Delta: the
  // key wrote R u + S' dv, of which dphi holds the first term.
  void StoreDecayGradients(const ScanBlock& at) {
    const DF d;
    for (int64_t t = at.keys - 1; t >= 0; --t) {
      float* wrote = dphi.Row(t) + item.begin;
      const float *key = k.Row(t) + item.begin, *a = decay.Row(t) + item.begin;
      const float* flow = at.queries > 0 ? KeptOfMine(kept.flow, at.q + t) : nullptr;
      const float* stored = delta ? KeptOfMine(kept.stored, at.k + t) : nullptr;
      for (int64_t c = 0; c < width_; c += kLanes) {
        VF total = hn::LoadU(d, sum + c), write = hn::LoadU(d, wrote + c);
        if (flow != nullptr) total = hn::Add(total, hn::LoadU(d, flow + c));
        if (stored != nullptr) write = hn::Add(write, hn::LoadU(d, stored + c));
        total = hn::NegMulAdd(hn::LoadU(d, key + c), write, total);
        // What has decayed to 0 has no gradient.
        const auto gone = hn::Eq(hn::LoadU(d, a + c), hn::Zero(d));
        hn::StoreU(hn::IfThenZeroElse(gone, total), d, sum + c);
      }
      const bool is_first = at.k + t == 0 && !HasState(problem);
      StoreDecayGradient(at.k + t, is_first ? nullptr : sum);
    }
  }

  // The same where features share a decay, for which there are no slices.
  void StoreSharedDecayGradients(const ScanBlock& at) {
    for (int64_t t = at.keys - 1; t >= 0; --t) {
      const float* key = k.Row(t);
      if (at.queries > 0) total_ += KeptRow(kept.flow, 1, at.q)[t];
      total_ -= Dot(key, dphi.Row(t), width_);
      if (delta) total_ -= Dot(key, KeptOfMine(kept.stored, at.k + t), width_);
      if (shared_decay[t] == 0) total_ = 0;
      const bool is_first = at.k + t == 0 && !HasState(problem);
      FloatAt(grad.dlog_decay, item.b, item.kv_head, at.k + t) =
          is_first ? 0.0f : static_cast<float>(total_);
    }
  }

  // values null: 0.
  void StoreDecayGradient(int64_t key, const float* values) {
    const View& to = grad.dlog_decay;
    const int64_t count = item.end - item.begin;
    if (shared_) {
      FloatAt(to, item.b, item.kv_head, key) = 0;
      return;
    }
    float* at = &FloatAt(to, item.b, item.kv_head, key, item.begin);
    for (int64_t c = 0; c < count; ++c) {
      at[c * to.stride[3]] = values == nullptr ? 0.0f : values[c];
    }
  }

  const int64_t width_, Dv_;
  const bool whole_, is_dots_, decays_, keys_wanted_;
  const bool shared_;  // whether the gradient of decays is one number a key
  const Tile dv_rows_;
  const Tile state_;
  const View q_, k_, dq_, dk_;
  std::optional<GradColumns> columns_;
  double total_ = 0;  // <dS', S'>, where features share a decay
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
