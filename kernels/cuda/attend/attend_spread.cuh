// Which heads of a library's result own kernels must compute again. Those in bands that hold a
// number which is not finite: a library that multiplies values by weights of zero gives NaN to
// queries that do not see a value which is not finite. Where lse_low is wanted, those with a large
// lse, which no single float32 holds well enough; of the others lse_low is 0. Four blocks a head.
// Bound: the bytes of the result, from L2.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/attend/not_finite.h"

namespace attnd::cuda {

constexpr int kSpreadThreads = 1024;
constexpr int kSpreadParts = 4;  // of a head: what ForwardData::needed has of it

// Fills in needed, [B][H], and lse_low. REQUIRES: rows of 16-bit numbers, aligned to 16 bytes.
__global__ void __launch_bounds__(kSpreadThreads)
    FindSpread(const __grid_constant__ Problems<ForwardData> problems) {
  const auto found = FindPlace(problems);
  const AttendData& p = found.problem.p;
  const int64_t head = found.block / kSpreadParts, part = found.block % kSpreadParts;
  const int64_t b = head / p.H, h = head % p.H, nq = p.seqs[b].nq;
  const uint32_t exponent = ExponentOfInfinity(p.out.dtype);
  const auto* out = static_cast<const uint16_t*>(p.out.data) + p.out.Head(b, h);
  const int vectors = p.Dv / 8;
  int lanes = 1;  // of a row
  while (lanes < vectors) lanes *= 2;
  const int column = static_cast<int>(threadIdx.x) % lanes, rows = kSpreadThreads / lanes;
  bool is_found = false;
  for (int64_t i = part * kSpreadThreads + threadIdx.x; p.lse_low.data != nullptr && i < nq;
       i += kSpreadParts * kSpreadThreads) {
    const float lse = static_cast<const float*>(p.lse.data)[p.lse.Head(b, h) + i * p.lse.row];
    is_found |= !(fabsf(lse) <= kMostLibraryLse);
    StoreLse(p, b, h, i, {lse, 0});
  }
  const bool is_band = p.seqs[b].pattern != nullptr;
#pragma unroll 4
  for (int64_t i = part * rows + threadIdx.x / lanes; is_band && i < nq; i += kSpreadParts * rows) {
    if (column >= vectors) break;
    is_found |=
        IsNotFinite(*reinterpret_cast<const uint4*>(out + i * p.out.row + column * 8), exponent);
  }
  is_found = __syncthreads_or(is_found) != 0;
  if (threadIdx.x == 0) reinterpret_cast<int*>(found.problem.needed)[found.block] = is_found;
}

}  // namespace attnd::cuda
