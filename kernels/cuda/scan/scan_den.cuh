// Normalisers of scan's rows.
#pragma once

#include "kernels/cuda/scan/scan_maps.cuh"
#include "kernels/cuda/scan/scan_work.h"

namespace attnd::cuda {

// den(d); 0 where the row is to give 0.
SIMT_FN float DenOf(const ScanWork& w, float d) {
  if (w.map == FeatureMap::kExp && w.den != ScanDen::kOne) return d;
  switch (w.den) {
    case ScanDen::kAdd:
      return d + w.eps;
    case ScanDen::kJax:
      return fabsf(d) <= w.eps ? d + 2 * w.eps : d;
    case ScanDen::kClamp:
      return d <= w.eps ? w.eps : d;
    case ScanDen::kAbsClamp:
      return fabsf(d) <= w.eps ? w.eps : fabsf(d);
    case ScanDen::kOne:
      break;
  }
  return 1;
}
// d den / d d.
SIMT_FN float DenSlopeOf(const ScanWork& w, float d) {
  if (w.map == FeatureMap::kExp) return 1;
  if (w.den == ScanDen::kClamp) return d <= w.eps ? 0 : 1;
  if (w.den == ScanDen::kAbsClamp) return fabsf(d) <= w.eps ? 0 : (d < 0 ? -1 : 1);
  return 1;
}

// x e^exponent; 0 stays 0 however large the factor is, and only a product that is too large for
// float32 becomes infinite.
SCAN_CALL float LiftedBy(float x, double exponent) {
  // e^600 lifts every float32 but 0 beyond float32.
  return static_cast<float>(x *
                            exp(exponent < -600 ? -600.0 : (exponent > 600 ? 600.0 : exponent)));
}

SIMT_FN float Lifted(float x, double exponent) { return exponent == 0 ? x : LiftedBy(x, exponent); }
SCAN_CALL double LogOf(double x) { return log(fabs(x)); }

// The shift of what query i reads, whose last key is `key`, and its own.
SIMT_FN float ShiftOfRow(const ScanWork& w, int64_t b, int64_t h, int64_t i, int64_t g,
                         int64_t key) {
  if (w.q_shift == nullptr) return 0;
  return w.q_shift[w.Row(b, h, i)] + (key < 0 ? -INFINITY : w.k_shift[w.Key(b, g, key)]);
}

// What turns a row's sums over values into the output.
struct RowFactor {
  const bool is_exp;
  const bool is_log;  // the factor is sign e^log
  float factor;
  double log;
  float shifts;

  SIMT_FN RowFactor(const ScanWork& w, float d, int64_t b, int64_t h, int64_t i, int64_t g,
                    int64_t key)
      : is_exp(w.map == FeatureMap::kExp),
        is_log(is_exp && w.den == ScanDen::kOne),
        log(0),
        shifts(ShiftOfRow(w, b, h, i, g, key)) {
    if (is_log) {
      factor = w.scale < 0 ? -1 : 1;
      log = LogOf(w.scale) + shifts;
    } else {
      const float den = DenOf(w, d);
      factor = den == 0 ? 0 : static_cast<float>(w.scale) / den;
    }
  }
  SIMT_FN float Apply(float num) const { return is_log ? Lifted(factor * num, log) : factor * num; }
  SIMT_FN float Lse(float d) const {
    if (is_exp) return logf(d) + shifts;
    return d <= 0 ? NAN : logf(d);
  }
};

}  // namespace attnd::cuda
