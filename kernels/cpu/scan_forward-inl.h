// The forward of one scan item.
#if defined(ATTND_CPU_SCAN_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_FORWARD_INL_H_
#undef ATTND_CPU_SCAN_FORWARD_INL_H_
#else
#define ATTND_CPU_SCAN_FORWARD_INL_H_
#endif

#include "kernels/cpu/scan_core-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

class ScanForward : private ScanCore {
 public:
  ScanForward(const ScanItem& work, float* scratch) : ScanCore(work, scratch) {}

  void Run() {
    std::fill(z, z + k.width, 0.0f);
    ZeroTile(s, D);
    for (int64_t n = 0; n < walk.absorbed; n += kScanBlock) {
      const int64_t count = std::min(kScanBlock, walk.absorbed - n);
      LoadKeys(n, count);
      Absorb(count, s, D, /*transposed=*/false);
    }
    for (int64_t t = 0; t < walk.steps(); t += layout.block) {
      Step(t, std::min(layout.block, walk.steps() - t));
    }
    // With no key at all, walk.first_query = nq.
    for (int64_t g = 0; g < group; ++g) {
      Blank(g, 0, walk.first_query);
      Blank(g, walk.end_query, problem.q.shape[2]);
    }
  }

 private:
  void Step(int64_t t, int64_t rows) {
    const int64_t keys = KeysOfStep(t, rows);
    if (keys > 0) {
      const bool finite = LoadKeys(walk.absorbed + t, keys);
      if (!finite && rows > 1) {
        for (int64_t i = 0; i < rows; ++i) Step(t + i, 1);
        return;
      }
      Transpose(k.data, k.pitch, keys, D, kt.data, kt.pitch);
    }
    if (shifted) {
      ComputeRowShifts(rows, keys);
      ComputeStateFactors(rows);
    }
    for (int64_t g = 0; g < group; ++g) StepOfHead(g, t, rows, keys);
    if (keys > 0) Absorb(keys, s, D, /*transposed=*/false);
  }

  void StepOfHead(int64_t g, int64_t t, int64_t rows, int64_t keys) {
    const int64_t n = walk.first_query + t;
    LoadFeatures(params.map, Queries(problem.q, g, n, rows), q, q_shift);
    ComputeRowNormalisers(rows, keys);
    Gemm<Start::kZero>(rows, v.width, D, q.Across(), s.Read(), o.Write());
    if (shifted) ScaleRows(factor, rows, o);
    // Taller strips waste more above the diagonal, lower ones leave the micro-kernel few sums.
    constexpr int64_t kStrip = 2 * kRows;
    for (int64_t i = 0; i < rows && keys > 0; i += kStrip) {
      const int64_t count = std::min(kStrip, rows - i);
      const int64_t seen = std::min(keys, i + count);
      Gemm<Start::kZero>(count, RoundUpTo(seen, kLanes), D, q.Across(i), kt.Read(), m.Write(i));
      for (int64_t r = i; r < i + count; ++r) MaskRow(r, seen, m.Row(r));
      Gemm<Start::kAdd>(count, v.width, seen, m.Across(i), v.Read(), o.Write(i));
    }
    const RowsOf out = Queries(problem.out, g, n, rows);
    const RowsOf lse = Queries(problem.lse, g, n, rows);
    for (int64_t i = 0; i < rows; ++i) {
      const float d = row_d[i];
      lse.Float(i) = LogNormaliser(d, shifted ? q_shift[i] + RowShift(i) : 0.0f);
      const float factor_of_num = params.den != ScanDen::kOne ? Reciprocal(d) : ScaleNum(i);
      Narrow(problem.out.dtype, o.Row(i), Dv, out.Row(i), factor_of_num);
    }
  }

  // Returns what is left to multiply row i with: what is no normal float32 is applied here.
  float ScaleNum(int64_t i) {
    constexpr double kLargestLog = 87;
    const double log_factor = LogScale(i);
    if (std::fabs(log_factor) <= kLargestLog) return static_cast<float>(std::exp(log_factor));
    Lift(log_factor, o.Row(i), Dv);
    return 1.0f;
  }

  // Every row of a step sees a key. d = 0: whatever the shifts, also if they are -inf or NaN.
  float LogNormaliser(float d, float shifts) const {
    if (d == 0) return shifted ? kNothing : std::numeric_limits<float>::quiet_NaN();
    return std::log(d) + shifts;
  }

  void Blank(int64_t g, int64_t begin, int64_t end) {
    ZeroRows(Queries(problem.out, g, begin, end - begin));
    const RowsOf lse = Queries(problem.lse, g, begin, end - begin);
    for (int64_t i = 0; i < lse.count; ++i) lse.Float(i) = kNothing;
  }
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
