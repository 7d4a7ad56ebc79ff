#include "kernels/cpu/fft/fft_tables.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <list>
#include <numbers>

#include "kernels/core/mutex.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

using Complex = std::complex<double>;

// A level of 256 elements of 16 lanes takes 32 KiB, and as much again to work in.
constexpr int64_t kLargestLevel = 256;
constexpr int64_t kLongStretch = 1024;  // sines and cosines between check points

// The factors of n in the order of their passes; empty if one is too large.
std::vector<int64_t> RadicesOf(int64_t n) {
  std::vector<int64_t> radices;
  for (int64_t radix : {4, 2, 3, 5}) {
    for (; n % radix == 0; n /= radix) radices.push_back(radix);
  }
  for (int64_t radix = 7; radix <= kLargestRadix; radix += 2) {
    for (; n % radix == 0; n /= radix) radices.push_back(radix);
  }
  return n == 1 ? radices : std::vector<int64_t>();
}

bool IsSmooth(int64_t n) { return n == 1 || !RadicesOf(n).empty(); }

// The divisor of n nearest to its square root from above.
int64_t OuterOf(int64_t n) {
  if (n <= kLargestLevel) return n;
  for (int64_t i = static_cast<int64_t>(std::sqrt(static_cast<double>(n))) + 1; i > 1; --i) {
    if (n % i == 0) return n / i;
  }
  return n;
}

// The smallest length from `least` on with the primes 2, 3 and 5 only, and of few twos less.
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

// exp(-2 pi i turns / whole).
Complex Root(int64_t turns, int64_t whole) {
  const double angle =
      -2 * std::numbers::pi * static_cast<double>(turns % whole) / static_cast<double>(whole);
  return {std::cos(angle), std::sin(angle)};
}

void Append(std::vector<float>& table, Complex value) {
  table.push_back(static_cast<float>(value.real()));
  table.push_back(static_cast<float>(value.imag()));
}

FftLevel LevelOf(int64_t n) {
  FftLevel level{.n = n, .passes = {}};
  int64_t rest = n, stride = 1;
  for (int64_t radix : RadicesOf(n)) {
    FftLevel::Pass pass{static_cast<int>(radix), rest / radix, stride, {}};
    for (int64_t p = 0; p < pass.parts; ++p) {
      for (int64_t t = 1; t < radix; ++t) Append(pass.twiddles, Root(p * t, rest));
    }
    for (int64_t t = 0; t < radix && radix > 5; ++t) Append(pass.twiddles, Root(t, radix));
    rest = pass.parts;
    stride *= radix;
    level.passes.push_back(std::move(pass));
  }
  return level;
}

// In float64, of a length with the primes 2, 3 and 5: `out` from every `step`-th element. roots:
// all of the whole length, n * step.
void Transform(const Complex* in, int64_t n, int64_t step, const std::vector<Complex>& roots,
               Complex* out) {
  if (n == 1) {
    *out = *in;
    return;
  }
  if (n >= kLongStretch && CheckPoint()) return;
  const int64_t radix = n % 2 == 0 ? 2 : n % 3 == 0 ? 3 : 5;
  const int64_t m = n / radix;
  for (int64_t u = 0; u < radix; ++u) Transform(in + u * step, m, step * radix, roots, out + u * m);
  for (int64_t k = 0; k < m; ++k) {
    Complex parts[5];
    for (int64_t u = 0; u < radix; ++u) parts[u] = out[u * m + k] * roots[u * k * step];
    for (int64_t t = 0; t < radix; ++t) {
      Complex sum = 0;
      for (int64_t u = 0; u < radix; ++u) sum += parts[u] * roots[u * t % radix * (m * step)];
      out[t * m + k] = sum;
    }
  }
}

void AddConvolution(FftTables& tables) {
  const int64_t n = tables.sizes.n, smooth = tables.sizes.smooth;
  std::vector<Complex> kernel(static_cast<size_t>(smooth)), spectrum(kernel.size()), roots;
  for (int64_t j = 0; j < smooth; ++j) {
    if (j % kLongStretch == 0 && CheckPoint()) return;
    roots.push_back(Root(j, smooth));
  }
  for (int64_t j = 0; j < n; ++j) {
    if (j % kLongStretch == 0 && CheckPoint()) return;
    // j^2 mod 2n; j < 2^31.
    const Complex w = Root(j * j % (2 * n), 2 * n);
    Append(tables.chirp, w);
    kernel[j] = std::conj(w);
    if (j > 0) kernel[smooth - j] = std::conj(w);
  }
  Transform(kernel.data(), smooth, 1, roots, spectrum.data());
  for (const Complex& x : spectrum) Append(tables.spectrum, x / static_cast<double>(smooth));
}

FftTables Build(int64_t n) {
  FftTables tables{.sizes = SizesOf(n)};
  const int64_t smooth = tables.sizes.smooth, n1 = tables.sizes.n1, n2 = tables.sizes.n2;
  tables.outer = LevelOf(n1);
  if (n2 > 1) {
    tables.inner = LevelOf(n2);
    for (int64_t j2 = 0; j2 < n2 && !CheckPoint(); ++j2) {
      for (int64_t k1 = 0; k1 < n1; ++k1) Append(tables.twiddles, Root(j2 * k1, smooth));
    }
  }
  if (tables.sizes.is_convolution()) AddConvolution(tables);
  return tables;
}

class PlanCache {
 public:
  std::shared_ptr<const FftTables> Get(int64_t n) {
    {
      MutexLock lock(&mu_);
      if (auto tables = Find(n)) return tables;
    }
    auto tables = std::make_shared<const FftTables>(Build(n));
    if (CheckPoint()) return nullptr;
    MutexLock lock(&mu_);
    if (auto other = Find(n)) return other;
    kept_.push_front(tables);
    bytes_ += tables->bytes();
    while (bytes_ > kBytes && kept_.size() > 1) {
      bytes_ -= kept_.back()->bytes();
      kept_.pop_back();
    }
    return tables;
  }

 private:
  static constexpr int64_t kBytes = int64_t{64} << 20;

  std::shared_ptr<const FftTables> Find(int64_t n) ATTND_REQUIRES(mu_) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if ((*it)->sizes.n != n) continue;
      kept_.splice(kept_.begin(), kept_, it);
      return kept_.front();
    }
    return nullptr;
  }

  Mutex mu_;
  std::list<std::shared_ptr<const FftTables>> kept_ ATTND_GUARDED_BY(mu_);  // latest first
  int64_t bytes_ ATTND_GUARDED_BY(mu_) = 0;
};

int64_t BytesOf(const FftLevel& level) {
  int64_t bytes = 0;
  for (const FftLevel::Pass& pass : level.passes) {
    bytes += static_cast<int64_t>(pass.twiddles.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace

FftSizes SizesOf(int64_t n) {
  FftSizes sizes{.n = n, .smooth = IsSmooth(n) ? n : ConvolutionOf(2 * n - 1)};
  sizes.n1 = OuterOf(sizes.smooth);
  sizes.n2 = sizes.smooth / sizes.n1;
  return sizes;
}

int64_t WorkOf(const FftSizes& sizes) {
  const int64_t rows = sizes.n2 == 1 ? 0 : sizes.n1 * (sizes.n2 + 1);
  return 2 * sizes.n1 + rows + (sizes.is_convolution() ? sizes.smooth : 0);
}

int64_t FftTables::bytes() const {
  const size_t floats = twiddles.size() + chirp.size() + spectrum.size();
  return BytesOf(outer) + BytesOf(inner) + static_cast<int64_t>(floats * sizeof(float));
}

std::shared_ptr<const FftTables> FftTablesOf(int64_t n) {
  static PlanCache* cache = new PlanCache;
  return cache->Get(n);
}

}  // namespace attnd
