#include "kernels/core/random_block.h"

#include <bit>
#include <cmath>
#include <numbers>

// Loops have constant lengths and no branch, so that the compiler makes vectors of them: 3 to 5
// times as fast as one number after the other with libm. Multiplications and additions are not
// contracted (ISO C++ mode), so every instruction set gives the same bits.
namespace attnd {
namespace {

#define ATTND_INLINE [[gnu::always_inline]] inline

constexpr int kBlocks = kDrawn / 4;
constexpr uint64_t kLow = 0xFFFFFFFFu;

// Ten rounds of Salmon et al. 2011, on 32-bit words in 64-bit lanes.
ATTND_INLINE void Philox(PhiloxKey key, uint64_t first, uint64_t (&x)[4][kBlocks]) {
  for (int i = 0; i < kBlocks; ++i) {
    x[0][i] = (first + i) & kLow;
    x[1][i] = (first + i) >> 32;
    x[2][i] = key.hash & kLow;
    x[3][i] = key.hash >> 32;
  }
  uint64_t k0 = key.seed & kLow, k1 = key.seed >> 32;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t p0 = 0xD2511F53u * x[0][i], p1 = 0xCD9E8D57u * x[2][i];
      x[0][i] = (p1 >> 32) ^ x[1][i] ^ k0;
      x[1][i] = p1 & kLow;
      x[2][i] = (p0 >> 32) ^ x[3][i] ^ k1;
      x[3][i] = p0 & kLow;
    }
    k0 = (k0 + 0x9E3779B9u) & kLow;
    k1 = (k1 + 0xBB67AE85u) & kLow;
  }
}

// Integers below 2^52 as doubles, without a conversion that only AVX-512 has for vectors.
ATTND_INLINE double ToDouble(uint64_t x) {
  return std::bit_cast<double>(x | 0x4330000000000000u) - 0x1p52;
}

ATTND_INLINE double Uniform(uint64_t x) { return (ToDouble(x) + 0.5) * 0x1p-32; }

// ln x for normal x < 2: within 3 ULP. x = 2^k m with m in [sqrt(1/2), sqrt(2)) and
// ln m = 2 artanh((m - 1) / (m + 1)), whose series ends below 2^-56 relative.
ATTND_INLINE double Log(double x) {
  constexpr uint64_t kOne = 0x3FF0000000000000u, kSqrtHalf = 0x3FE6A09E667F3BCDu;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t biased = (bits + (kOne - kSqrtHalf)) >> 52;  // k + 1023
  const double m = std::bit_cast<double>(bits - (biased << 52) + kOne);
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 1.0 / 21;
  sum = sum * z + 1.0 / 19;
  sum = sum * z + 1.0 / 17;
  sum = sum * z + 1.0 / 15;
  sum = sum * z + 1.0 / 13;
  sum = sum * z + 1.0 / 11;
  sum = sum * z + 1.0 / 9;
  sum = sum * z + 1.0 / 7;
  sum = sum * z + 1.0 / 5;
  sum = sum * z + 1.0 / 3;
  return (ToDouble(biased) - 1023) * std::numbers::ln2 + (2 * s + 2 * s * z * sum);
}

// cos and sin of 2 pi u, u in (0, 1): the angle's distance to a multiple of pi / 2 is exact.
ATTND_INLINE void CosSin(double u, double* cosine, double* sine) {
  const double shifted = 4 * u + 0x1p52;  // rounds to the nearest quadrant
  const uint64_t quadrant = std::bit_cast<uint64_t>(shifted) & 3;
  const double y = (4 * u - (shifted - 0x1p52)) * (std::numbers::pi / 2), z = y * y;
  // Taylor to 2^-56: 1 / (2i)! and 1 / (2i + 1)!.
  double c = -1.0 / 6402373705728000;
  c = c * z + 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 1.0 / 2;
  c = c * z + 1;
  double s = 1.0 / 355687428096000;
  s = s * z - 1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = (s * z + 1) * y;
  const uint64_t odd = 0 - (quadrant & 1);
  const uint64_t cb = std::bit_cast<uint64_t>(c), sb = std::bit_cast<uint64_t>(s);
  const uint64_t swap = (cb ^ sb) & odd;
  *cosine = std::bit_cast<double>((cb ^ swap) ^ (((quadrant + 1) & 2) << 62));
  *sine = std::bit_cast<double>((sb ^ swap) ^ ((quadrant & 2) << 62));
}

// The inverse of the normal distribution function for p in [0.01, 0.99]: Wichura 1988, AS 241, of
// which the far tails are left out.
ATTND_INLINE double InverseNormal(double p) {
  const double q = p - 0.5;
  const double r = 0.180625 - q * q;
  double a = 2.5090809287301226727e+3, b = 5.2264952788528545610e+3;
  a = a * r + 3.3430575583588128105e+4;
  a = a * r + 6.7265770927008700853e+4;
  a = a * r + 4.5921953931549871457e+4;
  a = a * r + 1.3731693765509461125e+4;
  a = a * r + 1.9715909503065514427e+3;
  a = a * r + 1.3314166789178437745e+2;
  a = a * r + 3.3871328727963666080e+0;
  b = b * r + 2.8729085735721942674e+4;
  b = b * r + 3.9307895800092710610e+4;
  b = b * r + 2.1213794301586595867e+4;
  b = b * r + 5.3941960214247511077e+3;
  b = b * r + 6.8718700749205790830e+2;
  b = b * r + 4.2313330701600911252e+1;
  b = b * r + 1;
  const double t = std::sqrt(-Log(0.5 - std::fabs(q))) - 1.6;
  double c = 7.74545014278341407640e-4, d = 1.05075007164441684324e-9;
  c = c * t + 2.27238449892691845833e-2;
  c = c * t + 2.41780725177450611770e-1;
  c = c * t + 1.27045825245236838258e+0;
  c = c * t + 3.64784832476320460504e+0;
  c = c * t + 5.76949722146069140550e+0;
  c = c * t + 4.63033784615654529590e+0;
  c = c * t + 1.42343711074968357734e+0;
  d = d * t + 5.47593808499534494600e-4;
  d = d * t + 1.51986665636164571966e-2;
  d = d * t + 1.48103976427480074590e-1;
  d = d * t + 6.89767334985100004550e-1;
  d = d * t + 1.67638483018380384940e+0;
  d = d * t + 2.05319162663775882187e+0;
  d = d * t + 1;
  const bool is_middle = std::fabs(q) <= 0.425;
  return (is_middle ? q * a : std::copysign(c, q)) / (is_middle ? b : d);
}

ATTND_INLINE void Uniforms(PhiloxKey key, uint64_t first, double* out) {
  uint64_t x[4][kBlocks];
  Philox(key, first, x);
  for (int i = 0; i < kBlocks; ++i) {
    for (int w = 0; w < 4; ++w) out[4 * i + w] = Uniform(x[w][i]);
  }
}

ATTND_INLINE void Normals(PhiloxKey key, uint64_t first, double* out) {
  uint64_t x[4][kBlocks];
  Philox(key, first, x);
  double values[4][kBlocks];
  for (int w = 0; w < 4; w += 2) {
    for (int i = 0; i < kBlocks; ++i) {
      const double radius = std::sqrt(-2 * Log(Uniform(x[w][i])));
      double cosine, sine;
      CosSin(Uniform(x[w + 1][i]), &cosine, &sine);
      values[w][i] = radius * cosine;
      values[w + 1][i] = radius * sine;
    }
  }
  for (int i = 0; i < kBlocks; ++i) {
    for (int w = 0; w < 4; ++w) out[4 * i + w] = values[w][i];
  }
}

ATTND_INLINE void TruncatedNormals(PhiloxKey key, uint64_t first, double* out) {
  constexpr double kBelow = 0.022750131948179207200;  // Phi(-2)
  double u[kDrawn];
  Uniforms(key, first, u);
  for (int i = 0; i < kDrawn; ++i) out[i] = InverseNormal(kBelow + u[i] * (1 - 2 * kBelow));
}

#undef ATTND_INLINE

using Fill = void(PhiloxKey, uint64_t, double*);

[[gnu::target("avx2")]] void Uniforms2(PhiloxKey key, uint64_t first, double* out) {
  Uniforms(key, first, out);
}
[[gnu::target("avx2")]] void Normals2(PhiloxKey key, uint64_t first, double* out) {
  Normals(key, first, out);
}
[[gnu::target("avx2")]] void TruncatedNormals2(PhiloxKey key, uint64_t first, double* out) {
  TruncatedNormals(key, first, out);
}

void Choose(Fill* narrow, Fill* wide, PhiloxKey key, uint64_t first, double* out) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  (has_avx2 ? wide : narrow)(key, first, out);
}

}  // namespace

void DrawUniforms(PhiloxKey key, uint64_t first, double* out) {
  Choose(Uniforms, Uniforms2, key, first, out);
}

void DrawNormals(PhiloxKey key, uint64_t first, double* out) {
  Choose(Normals, Normals2, key, first, out);
}

void DrawTruncatedNormals(PhiloxKey key, uint64_t first, double* out) {
  Choose(TruncatedNormals, TruncatedNormals2, key, first, out);
}

}  // namespace attnd
