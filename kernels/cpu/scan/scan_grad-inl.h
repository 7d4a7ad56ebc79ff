// ScanJob::kRows, kErrors, kColumns.
#if defined(ATTND_CPU_SCAN_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_GRAD_INL_H_
#undef ATTND_CPU_SCAN_GRAD_INL_H_
#else
#define ATTND_CPU_SCAN_GRAD_INL_H_
#endif

#include "kernels/cpu/scan/scan_grad_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// ScanJob::kRows: to_num, to_d without dots, slopes, lifts, shifts.
class ScanGradRows : private GradCore {
 public:
  ScanGradRows(const ScanItem& work, float* scratch) : GradCore(work, scratch) {}

  void Run() {
    StartNormaliser();
    walk.ForEachBlock(block, /*reverse=*/false, [&](const ScanBlock& at, const ScanBlock& next) {
      FetchFeatures(next);
      ahead.Rest();
      LoadQueries(at);
      LoadKeys(at);
      FindRows(at);
    });
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
    walks_rows = true;
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
      const Series values = RowSeries(ReadRows(Keys(values_, at), v));
      const Series error = {.data = KeptRow(kept.error, kept.v_pitch, at.k) + item.begin,
                            .token = kept.v_pitch};
      RecurDelta(is_decaying ? Decay::kRowsFirst : Decay::kNone, {.tokens = at.keys,
                                                                  .rows = D,
                                                                  .lanes = v.width,
                                                                  .state = state.Write(),
                                                                  .key = RowSeries(k),
                                                                  .value = values,
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

// ScanJob::kColumns.
class ScanGradColumns : private GradCore {
 public:
  ScanGradColumns(const ScanItem& work, float* scratch)
      : GradCore(work, scratch), columns_(this, work.begin, work.end, s) {
    v.width = o.width = columns_.width();
  }

  void Run() {
    columns_.Start();
    walk.ForEachBlock(block, /*reverse=*/true, [&](const ScanBlock& at, const ScanBlock& next) {
      FetchFeatures(next);
      FetchQueries(columns_.dout(), next);
      FetchStored(Keys(columns_.dv(), next));
      const float ratio = RaiseLift(at);
      LoadQueries(at);
      LoadKeys(at, shifts);
      LoadGradients(columns_.dout(), at, /*own_lift=*/false);
      const Decay how = FindDecay(at, /*reverse=*/true, Decay::kRowsLast);
      IntoRuns(at, o, at.queries > 0 ? group : 0);
      columns_.Step(at, how, ratio);
      ahead.Rest();
    });
    columns_.Finish();
  }

 private:
  GradColumns columns_;
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
