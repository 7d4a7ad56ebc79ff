// Which tiles of gradients that a library has computed own kernels compute again (attend_spread.cuh
// says why): GradQueries and GradKeys those that hold a number which is not finite, GradWideQueries
// and GradWideKeys those of rows with a large lse.
//
// Bound: bytes, from L2 where they are there.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/attend/not_finite.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

// Of rows [first, end) of a head, in a tile of 64, this thread's part.
SIMT_FN bool HoldsNotFinite(const Plane& plane, int64_t at, int64_t first, int64_t end, int width) {
  const auto* data = static_cast<const uint16_t*>(plane.data) + at;
  const uint32_t exponent = ExponentOfInfinity(plane.dtype);
  const int vectors = width / 8;
  bool is_found = false;
  for (int64_t n = threadIdx.x; n < (end - first) * vectors; n += kGradThreads) {
    const int64_t row = first + n / vectors, column = n % vectors * 8;
    is_found |=
        IsNotFinite(*reinterpret_cast<const uint4*>(data + row * plane.row + column), exponent);
  }
  return is_found;
}

// Of rows [first, end) of a head, this thread's part.
SIMT_FN bool HasLargeLse(const AttendData& a, int64_t b, int64_t h, int64_t first, int64_t end) {
  const auto* lse = static_cast<const float*>(a.lse.data) + a.lse.Head(b, h);
  bool is_found = false;
  for (int64_t i = first + threadIdx.x; i < end; i += kGradThreads) {
    is_found |= !(fabsf(lse[i * a.lse.row]) <= kMostLibraryLse);
  }
  return is_found;
}

// Fills in careful_queries and careful_keys: a block for a tile of queries, then of keys, of each
// head. REQUIRES: of sequences that have rows, rows of 16-bit numbers, aligned to 16 bytes.
__global__ void __launch_bounds__(kGradThreads)
    FindGradSpread(const __grid_constant__ Problems<GradData> problems) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t of_queries = p.a.B * p.a.H * p.query_tiles;
  const bool is_query = block < of_queries;
  const int64_t rest = is_query ? block : block - of_queries;
  const int64_t tiles = is_query ? p.query_tiles : p.key_tiles;
  const int64_t heads = is_query ? p.a.H : p.a.H / p.a.group;
  const int64_t first = rest % tiles * kSide, h = rest / tiles % heads, b = rest / tiles / heads;
  const int64_t end = min(first + kSide, is_query ? p.a.seqs[b].nq : p.a.seqs[b].nk);
  bool is_odd = false, is_large = false;
  if (is_query) {
    is_odd = HoldsNotFinite(p.dq, p.dq.Head(b, h), first, end, p.a.D);
    is_large = HasLargeLse(p.a, b, h, first, end);
  } else {
    is_odd = HoldsNotFinite(p.dk, p.dk.Head(b, h), first, end, p.a.D) ||
             HoldsNotFinite(p.dv, p.dv.Head(b, h), first, end, p.a.Dv);
    // There are as many heads of queries, any of which may see these keys.
    is_large = first < end && HasLargeLse(p.a, b, h, 0, p.a.seqs[b].nq);
  }
  is_odd = __syncthreads_or(is_odd) != 0;
  is_large = __syncthreads_or(is_large) != 0;
  const int32_t flag = is_large ? GradData::kLargeLse : is_odd ? GradData::kCareful : 0;
  const int64_t rounds = is_query ? p.query_rounds : p.key_rounds;
  for (int64_t n = threadIdx.x; n < rounds; n += kGradThreads) {
    (is_query ? p.careful_queries : p.careful_keys)[rest * rounds + n] = flag;
  }
}

}  // namespace attnd::cuda::attend_grad
