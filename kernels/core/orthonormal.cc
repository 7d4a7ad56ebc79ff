#include "kernels/core/orthonormal.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/run_control.h"

namespace attnd {
namespace {

// In eight sums: each addition to a single one depends on the addition before.
double Dot(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(sums, sums + 8, 0.0);
}

}  // namespace

// Gram-Schmidt, twice: orthogonal to rounding (Giraud et al. 2005).
void Orthonormalise(int64_t D, int64_t count, double* columns) {
  // A nanosecond for each number of a column that is subtracted.
  const int64_t columns_to_check_point = std::max<int64_t>((int64_t{1} << 15) / D, 1);
  for (int64_t j = 0; j < count && !CheckPoint(); ++j) {
    double* column = columns + j * D;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t i = 0; i < j; ++i) {
        if ((i + 1) % columns_to_check_point == 0 && CheckPoint()) return;
        const double* before = columns + i * D;
        const double along = Dot(column, before, D);
        for (int64_t d = 0; d < D; ++d) column[d] -= along * before[d];
      }
    }
    const double norm = std::sqrt(Dot(column, column, D));
    for (int64_t d = 0; d < D; ++d) column[d] /= norm;
  }
}

}  // namespace attnd
