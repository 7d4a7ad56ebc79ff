// The real part of two-dimensional transforms, in passes over device memory.
//
// Only the part of x that is even under (a, b) -> (-a, -b) has a real transform, and it is all that
// a real part shows. With s = that part:
//  1. rows 0..N/2 of s (the others are their mirror images), two real rows in one complex
//     transform Z;
//  2. columns 0..M/2 of the rows' transforms S, which are Hermitian (S[-n, m] = conj S[n, m]), two
//     of their real transforms in one complex one. out[-n, -m] = out[n, m] gives the rest.
//
// Bound: bytes. Lengths of at most 4096 read x once, write and read Z, which has half of its
// elements' bytes, and write the result: 12 bytes an element of float32. Passes over shared memory
// are about as many bytes a processor moves at the same time.
#pragma once

#include "kernels/cuda/fft/fft_radix.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

constexpr int kFftThreads = 256;

// Where a line of a block lies.
struct FftLine {
  int64_t in, out;  // first element of its array or matrix
  int64_t place;    // q + stride p
  int64_t number;   // of a pair of rows or columns of its matrix
};

SIMT_FN FftLine LineOf(const FftPass& f, int64_t line) {
  const int64_t of_transform = f.n / f.level.length;
  const int64_t transform = line / of_transform, matrix = transform / f.of_matrix;
  FftLine at;
  at.place = line - transform * of_transform;
  at.number = transform - matrix * f.of_matrix;
  at.in = transform * f.n;
  at.out = transform * (f.chirps_out ? f.given : f.n);
  if (f.from == FftFrom::kColumns) at.in = matrix * ((f.N / 2 + 2) / 2) * f.M;
  if (f.from == FftFrom::kRows || f.to == FftTo::kColumns) {
    int64_t offset = 0, number = matrix;
    for (int i = f.real.leading - 1; i >= 0; --i) {
      const int64_t rest = number / f.real.dims[i];
      offset += (number - rest * f.real.dims[i]) * f.real.strides[i];
      number = rest;
    }
    (f.from == FftFrom::kRows ? at.in : at.out) = offset;
  }
  return at;
}

// Element b of row a of the even part, halved: two rows are taken apart later.
SIMT_FN float EvenElement(const FftPass& f, const FftLine& line, int64_t a, int64_t b) {
  if (a > f.N / 2) return 0;
  const int64_t mirrored_a = a == 0 ? 0 : f.N - a, mirrored_b = b == 0 ? 0 : f.M - b;
  const FftMatrices& x = f.real;
  return 0.25f * LoadFloat(x.data, x.dtype, line.in + a * x.row + b * x.column) +
         0.25f * LoadFloat(x.data, x.dtype, line.in + mirrored_a * x.row + mirrored_b * x.column);
}

// Column m of the transform of row a <= N/2, from that of a pair of rows.
SIMT_FN FftComplex RowsTransform(const FftPass& f, const FftLine& line, int64_t a, int64_t m) {
  const FftComplex* const row = f.in + line.in + a / 2 * f.M;
  const FftComplex z = row[m], y = row[m == 0 ? 0 : f.M - m];
  if (a % 2 == 0) return {z.re + y.re, z.im - y.im};
  return {z.im + y.im, y.re - z.re};
}

SIMT_FN FftComplex LoadElement(const FftPass& f, const FftLine& line, int64_t j) {
  if (f.chirps_in && j >= f.given) return {0, 0};
  FftComplex x = {0, 0};
  switch (f.from) {
    case FftFrom::kArray:
      x = f.in[line.in + j];
      break;
    case FftFrom::kRows:
      x = {EvenElement(f, line, 2 * line.number, j), EvenElement(f, line, 2 * line.number + 1, j)};
      break;
    case FftFrom::kColumns: {
      const bool is_mirrored = j > f.N / 2;
      const int64_t a = is_mirrored ? f.N - j : j, m = 2 * line.number;
      FftComplex left = RowsTransform(f, line, a, m);
      FftComplex right = {0, 0};
      if (m + 1 <= f.M / 2) right = RowsTransform(f, line, a, m + 1);
      if (is_mirrored) left.im = -left.im, right.im = -right.im;
      x = AddI(left, right);
      break;
    }
    case FftFrom::kChirp: {
      const int64_t at = j < f.given ? j : f.n - j;
      if (at < f.given) x = {f.chirp[at].re, -f.chirp[at].im};
      break;
    }
  }
  return f.chirps_in ? Mul(x, f.chirp[j]) : x;
}

SIMT_FN void StoreReal(const FftPass& f, const FftLine& line, int64_t n, int64_t m, float value) {
  const FftMatrices& out = f.real;
  StoreFloat(out.data, out.dtype, line.out + n * out.row + m * out.column, value);
  if (m == 0 || 2 * m == f.M) return;
  StoreFloat(out.data, out.dtype,
             line.out + (n == 0 ? 0 : f.N - n) * out.row + (f.M - m) * out.column, value);
}

// Element t of a line, k of its transform.
SIMT_FN void StoreElement(const FftPass& f, const FftLine& line, int64_t t, FftComplex x) {
  const int64_t p = line.place / f.stride, q = line.place - p * f.stride;
  const int64_t k = q + f.stride * (f.level.length * p + t);
  if (f.parts > 1) x = Mul(x, f.roots[f.stride * p * t]);
  if (f.chirps_out) {
    if (k >= f.given) return;
    x = Mul(Exchanged(x), f.chirp[k]);
  }
  switch (f.to) {
    case FftTo::kArray:
      f.out[line.out + k] = x;
      break;
    case FftTo::kSpectrum:
      f.out[line.out + k] = Scale(x, 1 / static_cast<float>(f.n));
      break;
    case FftTo::kProduct:
      f.out[line.out + k] = Exchanged(Mul(x, f.spectrum[k]));
      break;
    case FftTo::kColumns:
      StoreReal(f, line, k, 2 * line.number, x.re);
      if (2 * line.number + 1 <= f.M / 2) StoreReal(f, line, k, 2 * line.number + 1, x.im);
      break;
  }
}

constexpr size_t FftSharedBytes(int width, int length) {
  return simt::SharedBytes<FftLine>(width) + 2 * simt::SharedBytes<FftComplex>(width * length);
}

static __global__ void __launch_bounds__(kFftThreads)
    FftKernel(const __grid_constant__ Problems<FftPass> problems) {
  const Place<FftPass> place = FindPlace(problems);
  const FftPass& f = place.problem;
  const int width = f.width, length = f.level.length, elements = width * length;
  const int64_t first = place.block * width;
  const int64_t rest = f.transforms * (f.n / length) - first;
  const int lines = rest < width ? static_cast<int>(rest) : width;
  simt::SharedTiles shared;
  FftLine* const at = shared.Take<FftLine>(width);
  FftComplex* const x = shared.Take<FftComplex>(elements);
  FftComplex* const other = shared.Take<FftComplex>(elements);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < lines; i += kFftThreads) at[i] = LineOf(f, first + i);
  __syncthreads();

  // Threads follow what lies next to each other: elements of a line, or lines.
  const bool is_whole = f.n == length;
  const bool reads_along = is_whole && f.from != FftFrom::kColumns;
  for (int e = thread; e < elements; e += kFftThreads) {
    const int line = reads_along ? e / length : e % width;
    const int u = reads_along ? e - line * length : e / width;
    FftComplex value = {0, 0};
    if (line < lines) value = LoadElement(f, at[line], at[line].place + f.stride * f.parts * u);
    x[u * width + line] = value;
  }
  __syncthreads();
  const FftComplex* const done = RunLevel(f.level, width, f.roots, f.n, x, other);
  const bool writes_along = f.stride == 1 && f.to != FftTo::kColumns;
  for (int e = thread; e < elements; e += kFftThreads) {
    const int line = writes_along ? e / length : e % width;
    const int t = writes_along ? e - line * length : e / width;
    if (line < lines) StoreElement(f, at[line], t, done[t * width + line]);
  }
}

// Tables in float64, rounded once. kTableElements of a block.
constexpr int kTableElements = 1024;

static __global__ void __launch_bounds__(kFftThreads)
    FftTableKernel(const __grid_constant__ Problems<FftTable> problems) {
  constexpr double kPi = 3.14159265358979323846;
  const Place<FftTable> place = FindPlace(problems);
  const FftTable& table = place.problem;
  const int64_t first = place.block * kTableElements;
  for (int i = static_cast<int>(threadIdx.x); i < kTableElements; i += kFftThreads) {
    const int64_t j = first + i;
    if (j >= table.n) return;
    const double turns =
        table.is_chirp ? static_cast<double>(j * j % (2 * table.n)) / 2 : static_cast<double>(j);
    const double angle = -2 * kPi * (turns / static_cast<double>(table.n));
    table.to[j] = {static_cast<float>(cos(angle)), static_cast<float>(sin(angle))};
  }
}

}  // namespace attnd::cuda
