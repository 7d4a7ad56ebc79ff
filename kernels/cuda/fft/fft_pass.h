// One pass of transforms as the kernel of fft gets it.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/core/view.h"
#include "kernels/cuda/fft/fft_length.h"

namespace attnd::cuda {

struct FftComplex {
  float re, im;
};

// Matrices [N,M] of a view, with its leading dimensions.
struct FftMatrices {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row = 0, column = 0;  // strides
  int leading = 0;
  std::array<int64_t, kMaxRank - 2> dims = {}, strides = {};
};

enum class FftFrom : uint8_t {
  kArray,    // elements of a transform next to each other
  kRows,     // two rows of the even part of a real matrix
  kColumns,  // two columns of the rows' transforms
  kChirp,    // the conjugate of the chirp, wrapped around: what a convolution is with
};
enum class FftTo : uint8_t {
  kArray,
  kSpectrum,  // the same, divided by the length: of kChirp
  kProduct,   // the same, times the spectrum, real and imaginary parts exchanged
  kColumns,   // two columns of a real matrix, and their mirror images
};

// Pass `level` of `transforms` transforms, as Stockham's with large radices: element
// q + stride (p + parts u) becomes q + stride (length p + t), times exp(-2 pi i stride p t / n), by
// a transform from u to t, 0 <= q < stride, 0 <= p < parts.
struct FftPass {
  int64_t transforms = 0;
  int64_t n = 1, stride = 1, parts = 1;
  FftLevel level;
  int width = 1;  // lines of a block
  FftFrom from = FftFrom::kArray;
  FftTo to = FftTo::kArray;
  bool chirps_in = false;   // times the chirp; elements from `given` on are 0
  bool chirps_out = false;  // exchanged, times the chirp; elements from `given` on are left out
  int64_t given = 1;
  const FftComplex* roots = nullptr;     // exp(-2 pi i j / n), [n]
  const FftComplex* chirp = nullptr;     // exp(-pi i j^2 / given), [given]
  const FftComplex* spectrum = nullptr;  // [n]
  const FftComplex* in = nullptr;
  FftComplex* out = nullptr;
  // Of kRows and kColumns.
  int64_t N = 0, M = 0, of_matrix = 1;  // transforms
  FftMatrices real;

  int64_t lines() const { return transforms * (n / level.length); }
};

// A table of roots, or of a chirp, of length n.
struct FftTable {
  int64_t n = 1;
  bool is_chirp = false;
  FftComplex* to = nullptr;
};

}  // namespace attnd::cuda
