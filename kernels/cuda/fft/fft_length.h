// How a transform of one length is cut into passes over device memory.
#pragma once

#include <array>
#include <cstdint>

namespace attnd::cuda {

// A level is a transform that fits into shared memory: at most kMostLine elements, the product of
// `radices`.
struct FftLevel {
  static constexpr int kMostLine = 4096;
  static constexpr int kMostRadices = 12;
  // Larger primes are summed by a convolution (Bluestein 1970).
  static constexpr int kLargestRadix = 47;

  int length = 1;
  int count = 0;
  std::array<uint8_t, kMostRadices> radices = {};
};

// A length is the product of its levels; one with a large prime is a convolution of a smooth
// length.
struct FftLength {
  static constexpr int kMostLevels = 4;

  FftLength() = default;
  explicit FftLength(int64_t n);

  int64_t n = 1;
  int64_t smooth = 1;  // n, or the length of the convolution
  int count = 0;
  std::array<FftLevel, kMostLevels> levels;

  bool is_convolution() const { return smooth != n; }
  // Passes of one transform: a convolution is two.
  int passes() const { return is_convolution() ? 2 * count : count; }

 private:
  bool Cut(int64_t length);
};

}  // namespace attnd::cuda
