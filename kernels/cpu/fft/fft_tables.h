// How a discrete Fourier transform of one length is cut, and its tables.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace attnd {

// Cheap: from the factors of n alone. A length whose primes are all small is n1 * n2, two levels of
// transforms that fit into L1 (n2 = 1: one level). Any other is a convolution of a smooth length
// (Bluestein 1970).
struct FftSizes {
  int64_t n = 1;
  int64_t smooth = 1;  // n, or the length of the convolution
  int64_t n1 = 1, n2 = 1;
  bool is_convolution() const { return smooth != n; }
};
FftSizes SizesOf(int64_t n);
// Elements that transforming one column works in.
int64_t WorkOf(const FftSizes& sizes);

// Primes up to here are summed directly: about where that costs as much as a convolution.
constexpr int64_t kLargestRadix = 47;

// One level: Stockham's passes, decimation in frequency. Pass i turns `rest` = product of radices
// from i on into rest / radix, with factors w^(p t), w = exp(-2 pi i / rest), t = 1 .. radix - 1.
struct FftLevel {
  struct Pass {
    int radix;
    int64_t parts;   // rest / radix
    int64_t stride;  // product of the radices before
    // (re, im) of w^(p t), [parts][radix - 1]; for a direct sum then exp(-2 pi i t / radix),
    // [radix].
    std::vector<float> twiddles;
  };
  int64_t n = 1;
  std::vector<Pass> passes;
};

// The tables of one length. Immutable.
struct FftTables {
  FftSizes sizes;
  FftLevel outer, inner;        // of n1 and of n2
  std::vector<float> twiddles;  // (re, im) of exp(-2 pi i j2 k1 / smooth), [n2][n1]
  // Of a convolution: exp(-pi i j^2 / n), [n], and the transform of its conjugate over `smooth`,
  // divided by that.
  std::vector<float> chirp, spectrum;
  int64_t bytes() const;
};

// Tables are kept; beyond 64 MiB the least recently used ones are freed. Thread safe.
std::shared_ptr<const FftTables> FftTablesOf(int64_t n);

}  // namespace attnd
