// The forward of one scan item: columns of the output.
#if defined(ATTND_CPU_SCAN_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_FORWARD_INL_H_
#undef ATTND_CPU_SCAN_FORWARD_INL_H_
#else
#define ATTND_CPU_SCAN_FORWARD_INL_H_
#endif

#include "kernels/cpu/scan/scan_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

class ScanForward : private ScanCore {
 public:
  ScanForward(const ScanItem& work, float* scratch)
      : ScanCore(work, scratch),
        Dv_(work.end - work.begin),
        values_(Columns(problem.v, work.begin, work.end)),
        out_(Columns(problem.out, work.begin, work.end)),
        s_out_(Columns(problem.s_out, work.begin, work.end)),
        needs_normaliser_(params.den != ScanDen::kOne || problem.lse.given() ||
                          problem.z_out.given()) {
    v.width = o.width = ScanWidth::Of(Dv_);
    walks_rows = delta;
  }

  void Run() {
    StartNormaliser();
    LoadState(Columns(problem.s0, item.begin, item.end), State());
    walk.ForEachBlock(block, /*reverse=*/false, [&](const ScanBlock& at, const ScanBlock& next) {
      Fetch(next);
      Step(at);
    });
    Finish();
    for (int64_t g = 0; g < group; ++g) {
      Blank(g, 0, walk.first_query);
      Blank(g, walk.end_query, problem.q.shape[2]);
    }
    hwy::FlushStream();
  }

 private:
  Tile State() const { return {s, layout.v_pitch, v.width}; }

  void Finish() {
    for (int64_t c = 0; c < D && s_out_.given(); ++c) {
      for (int64_t d = 0; d < Dv_; ++d)
        FloatAt(s_out_, item.b, item.kv_head, c, d) = State().Row(c)[d];
    }
    for (int64_t c = 0; c < D && problem.z_out.given() && item.begin == 0; ++c) {
      FloatAt(problem.z_out, item.b, item.kv_head, c) = z[c];
    }
  }

  void Fetch(const ScanBlock& next) {
    FetchFeatures(next);
    ahead.Add(Keys(values_, next));
    for (int64_t g = 0; g < group; ++g) FetchStored(Queries(out_, g, next));
  }

  void Step(const ScanBlock& at) {
    LoadQueries(at);
    LoadKeys(at);
    const Decay how = FindDecay(at, /*reverse=*/false, Decay::kRowsFirst);
    if (at.keys > 0) LoadValues(at);
    if (needs_normaliser_) Normalise(at);
    Rise(D, State());
    const int64_t reads = at.queries > 0 ? group : 0;
    if (delta && at.keys > 0) {
      RecurDelta(how, {.tokens = at.count(),
                       .rows = D,
                       .lanes = v.width,
                       .reads = reads,
                       .state = State().Write(),
                       .key = RowSeries(k),
                       .value = writes_,
                       .error = RowSeries(v),
                       .read = RowSeries(q),
                       .out = RowSeries(o),
                       .decay = RowSeries(decay),
                       .weight = beta,
                       .ahead = &ahead});
    } else {
      Recur(how, {.tokens = at.count(),
                  .rows = D,
                  .lanes = v.width,
                  .updates = at.keys > 0 ? 1 : 0,
                  .reads = reads,
                  .state = State().Write(),
                  .left = RowSeries(k),
                  .right = writes_,
                  .read = RowSeries(q),
                  .out = RowSeries(o),
                  .decay = RowSeries(decay),
                  .runs = &runs,
                  .ahead = &ahead});
    }
    ahead.Rest();
    OutOfRuns(at, o, reads);
    for (int64_t g = 0; g < group && at.queries > 0; ++g) Store(g, at);
  }

  // What the keys write; for the delta rule the values, which it replaces by its errors in v.
  void LoadValues(const ScanBlock& at) {
    const RowsOf rows = Keys(values_, at);
    if (delta || !(problem.beta.given() || in_runs)) {
      writes_ = RowSeries(ReadRows(rows, v));
      return;
    }
    LoadRows(rows, v);
    writes_ = RowSeries(v);
    ScaleByBeta(at, v);
    IntoRuns(at, v, 1);
  }

  void Store(int64_t g, const ScanBlock& at) {
    const RowsOf out = Queries(out_, g, at), lse = Queries(problem.lse, g, at);
    const RowStore store(out);
    float* const log_d = factor;
    const bool of_lse = item.begin == 0 && problem.lse.given();
    if (of_lse) LogRow(row_d + g * block, at.queries, log_d);
    for (int64_t t = 0; t < at.queries; ++t) {
      const int64_t row = g * block + t;
      const float d = needs_normaliser_ ? row_d[row] : 1.0f;
      const float shifts = shifted ? q_shift[row] + RowShift(at, t) : 0.0f;
      if (of_lse) lse.Float(t) = d == 0 ? LogOfNothing() : log_d[t] + shifts;
      const float factor_of_num =
          params.den != ScanDen::kOne ? Reciprocal(d) : ScaleNum(o.Row(row), shifts);
      store.Store(t, o.Row(row), factor_of_num);
    }
  }

  // Returns what is left to multiply the row with: what is no normal float32 is applied here.
  float ScaleNum(float* row, float shifts) const {
    constexpr double kLargestLog = 87;
    if (!shifted) return static_cast<float>(params.scale);
    const double log_factor = LogScale(shifts);
    if (std::fabs(log_factor) <= kLargestLog) {
      return Sign() * static_cast<float>(std::exp(log_factor));
    }
    Lift(log_factor, row, Dv_);
    return Sign();
  }

  // Every row of the walk sees a key or a state. d = 0: whatever the shifts, also if they are -inf
  // or NaN.
  float LogOfNothing() const {
    return shifted ? kNothing : std::numeric_limits<float>::quiet_NaN();
  }

  void Blank(int64_t g, int64_t begin, int64_t end) {
    const ScanBlock at = {.q = begin, .queries = end - begin};
    ZeroRows(Queries(out_, g, at));
    if (item.begin > 0 || !problem.lse.given()) return;
    const RowsOf lse = Queries(problem.lse, g, at);
    for (int64_t i = 0; i < lse.count; ++i) lse.Float(i) = kNothing;
  }

  const int64_t Dv_;
  const View values_, out_, s_out_;
  const bool needs_normaliser_;
  Series writes_;
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
