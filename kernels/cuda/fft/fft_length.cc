#include "kernels/cuda/fft/fft_length.h"

#include <algorithm>
#include <cmath>

namespace attnd::cuda {
namespace {

// The factors of n, all small, in the order of their passes.
FftLevel LevelOf(int64_t n) {
  FftLevel level{.length = static_cast<int>(n)};
  const auto divide = [&](int64_t radix) {
    for (; n % radix == 0; n /= radix) level.radices[level.count++] = static_cast<uint8_t>(radix);
  };
  for (int64_t radix : {4, 2, 3, 5}) divide(radix);
  for (int64_t radix = 7; radix <= FftLevel::kLargestRadix; radix += 2) divide(radix);
  return level;
}

bool IsSmooth(int64_t n) {
  for (int64_t radix = 2; radix <= FftLevel::kLargestRadix; ++radix) {
    while (n % radix == 0) n /= radix;
  }
  return n == 1;
}

// The smallest length from `least` on with the primes 2, 3 and 5 only, and of few but twos.
int64_t ConvolutionOf(int64_t least) {
  int64_t best = 1;
  while (best < least) best *= 2;
  for (int64_t odd : {3, 5, 9, 15}) {
    int64_t n = odd;
    while (n < least) n *= 2;
    best = std::min(best, n);
  }
  return best;
}

// The smallest divisor of n from its root on that a level may have; 0: there is none.
int64_t PartOf(int64_t n, int root) {
  if (root == 1) return n <= FftLevel::kMostLine ? n : 0;
  auto part = static_cast<int64_t>(std::pow(static_cast<double>(n), 1.0 / root) - 1e-6);
  for (part = std::max<int64_t>(part, 1); part <= FftLevel::kMostLine; ++part) {
    if (n % part == 0) return part;
  }
  return 0;
}

}  // namespace

FftLength::FftLength(int64_t length) : n(length), smooth(length) {
  if (n <= 1) {
    count = 1;
    return;
  }
  if (IsSmooth(n) && Cut(n)) return;
  smooth = ConvolutionOf(2 * n - 1);
  Cut(smooth);
}

// As few levels as possible, as equal as the factors allow, longer ones first.
bool FftLength::Cut(int64_t length) {
  for (count = 1; count <= kMostLevels; ++count) {
    int64_t rest = length;
    for (int i = 0; i < count; ++i) {
      const int64_t part = PartOf(rest, count - i);
      if (part == 0) break;
      levels[i] = LevelOf(part);
      rest /= part;
      if (i + 1 == count) return true;
    }
  }
  return false;
}

}  // namespace attnd::cuda
