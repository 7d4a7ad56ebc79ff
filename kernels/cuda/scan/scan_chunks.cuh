// Chunks of scan on tensor cores: the sum rule, where all features decay alike.
//
// With L_p the sum of log decays of a chunk's keys up to position p, S and z before the chunk:
//   num_p = e^L_p S^T phi_q,p + sum over j <= p of e^(L_p - L_j) (phi_q,p . phi_k,j) v_j
//   S = e^L S + sum over j of e^(L - L_j) phi_k,j (x) v_j,   L of the whole chunk
// (Hua et al. 2022, section 3.2; Yang et al. 2024, section 2.2). d and z likewise, of ones in place
// of v. A key's beta is a factor of its features. Products are float32's, three of TF32 each.
// FLOP: 2 (D Dv + 64 (D + Dv) 5 / 8) a query, 2 D Dv a key twice; bytes: q, k, v, out, and the
// states of segments.
#pragma once

#include "kernels/cuda/scan/scan_chunk_block.cuh"

namespace attnd::cuda {

// S and z of segments alone, from zero, in registers; backward R and r, their gradients.
template <int kWidth>
struct ChunkStates : ChunkBlock<kWidth> {
  using Base = ChunkBlock<kWidth>;
  using Base::at, Base::decays, Base::group, Base::is_bad, Base::k, Base::line, Base::padded,
      Base::t, Base::to_d, Base::v, Base::w, Base::warp, Base::z;
  static constexpr int kParts = Base::Shape::kHalves;
  float own[kParts][8][4];  // of this warp's features

  SIMT_FN ChunkStates(const ScanWork& work, int64_t block, simt::SharedTiles* tiles)
      : Base(work, block, work.D, tiles) {}

  SIMT_FN void Run(const ChunkStatesPass& pass) {
    if (!pass.all && at.segment == (pass.backward ? 0 : line.segments - 1)) return;
    for (int part = 0; part < kParts; ++part) Clear(own[part]);
    for (int f = threadIdx.x; f < kWidth; f += blockDim.x) z[f] = 0;
    const ChunkRole rows = pass.backward ? kQueryRows : kKeyRows;
    const ChunkRole columns = pass.backward ? kGradientRows : kValueRows;
    const int members = pass.backward ? w.group() : 1;
    const int chunks = (Base::positions() + kChunk - 1) / kChunk;
#pragma unroll 1
    for (int i = 0; i < chunks * members; ++i) {
      const int chunk = i / members, member = i % members;
      const int p = (pass.backward ? chunks - 1 - chunk : chunk) * kChunk;
      if (!Base::Has(rows, p) && !(pass.backward && w.key_decays)) continue;
      __syncthreads();  // the last chunk has been read
      Base::Start(k, rows, p, member, padded);
      Base::Start(v, columns, p, member, kWidth);
      simt::CopyCommit();
      simt::CopyWait<0>();
      Base::Finish(k, rows, p, member, padded);
      const bool finite = Base::Finish(v, columns, p, member, kWidth);
      if (pass.backward) Base::LoadToD(p, member);
      if (member == 0) Base::SumDecays(p);
      is_bad = __syncthreads_or(finite ? 0 : 1) != 0;
      if (is_bad) Base::SetBadAside(!pass.backward);
      const float decay = member == 0 ? Base::Decay() : 1.0f;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Base::AdvanceWithOnes(own[part], part * 64, decay,
                              pass.backward ? decays.from_start : decays.to_end,
                              pass.backward ? to_d : nullptr);
      }
    }
    __syncthreads();  // z
    Store(Base::OfSegment(pass.backward ? w.adjoints : w.states));
  }

 private:
  SIMT_FN void Store(const StateRef& to) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int f = warp * 16 + group + (i >> 1) * 8;
      if (f >= w.D) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int c = part * 64 + n * 8 + t * 2 + (i & 1);
          if (c < w.Dv) to.s[f * to.s_feature + c] = own[part][n][i];
        }
      }
    }
    for (int f = threadIdx.x; f < w.D && to.z != nullptr; f += blockDim.x) {
      to.z[f * to.z_feature] = z[f];
    }
  }
};

// Outputs of a segment's queries, or what rows need in the backward, from the state before it.
template <int kWidth>
struct ChunkRowsWalk : ChunkBlock<kWidth> {
  using Base = ChunkBlock<kWidth>;
  using Base::at, Base::bad, Base::decays, Base::group, Base::is_bad, Base::k, Base::kStateStride,
      Base::kStride, Base::lane, Base::line, Base::padded, Base::segment, Base::t, Base::v, Base::w,
      Base::warp, Base::z;
  const ForwardPass pass;
  float *q, *s;
  float* d;  // [warp][16]
  bool has_keys = false;

  SIMT_FN ChunkRowsWalk(const ScanWork& work, int64_t block, const ForwardPass& given,
                        simt::SharedTiles* tiles)
      : Base(work, block, work.D, tiles),
        pass(given),
        q(tiles->Take<float>(kChunk * kStride)),
        s(tiles->Take<float>(kWidth * kStateStride)),
        d(tiles->Take<float>(Base::Shape::kWarps * 16) + warp * 16) {}

  SIMT_FN void Run() {
    LoadState(w.states != nullptr ? Base::OfSegment(w.states) : StateRef(w.s0, w.z0, at.b, at.g));
    if (threadIdx.x == 0 && w.out.given) {
      segment->to.Set(w.out, at.b, at.g * w.group(), Base::begin() - line.ahead, line.first_query,
                      line.end_query, w.Dv);
    }
    const bool keeps_last = w.states == nullptr && (w.s_out.given || w.z_out.given);
    const int positions = Base::positions(), members = w.group();
#pragma unroll 1
    for (int p = 0; p < positions; p += kChunk) {
      __syncthreads();  // the last chunk has been read, and the state is there
      has_keys = Base::Has(kKeyRows, p);
      const bool has_queries = Base::Has(kQueryRows, p);
      if (has_keys) {
        Base::Start(k, kKeyRows, p, 0, padded);
        Base::Start(v, kValueRows, p, 0, kWidth);
      }
      if (has_queries) Base::Start(q, kQueryRows, p, 0, padded);
      simt::CopyCommit();
      simt::CopyWait<0>();
      bool finite = true;
      if (has_keys) {
        Base::Finish(k, kKeyRows, p, 0, padded);
        finite = Base::Finish(v, kValueRows, p, 0, kWidth);
        Base::SumDecays(p);
      }
#pragma unroll 1
      for (int member = 0; member < members; ++member) {
        if (member > 0) {
          __syncthreads();  // the last queries have been read
          Base::Start(q, kQueryRows, p, member, padded);
          simt::CopyCommit();
          simt::CopyWait<0>();
        }
        if (has_queries) Base::Finish(q, kQueryRows, p, member, padded);
        is_bad = __syncthreads_or(finite ? 0 : 1) != 0;
        if (is_bad && member == 0) Base::SetBadAside(/*later_see=*/true);
        if (!has_queries) break;
        SumRows();
        StoreRows(p, member);
      }
      if (!has_keys || (p + kChunk >= positions && !keeps_last)) continue;
      __syncthreads();  // the state has been read
#pragma unroll 1
      for (int part = 0; part < kWidth; part += 64) {
        float own[8][4];
        Base::ForEachOfState(s, own, part, [](float& x, float* at_s) { x = *at_s; });
        Base::AdvanceWithOnes(own, part, Base::Decay(), decays.to_end, nullptr);
        Base::ForEachOfState(s, own, part, [](float& x, float* at_s) { *at_s = x; });
      }
    }
    if (!keeps_last) return;
    __syncthreads();
    StoreState(StateRef(w.s_out, w.z_out, at.b, at.g));
  }

 private:
  // Zeros beyond D and Dv.
  SIMT_FN void LoadState(const StateRef& from) {
    const int c = static_cast<int>(threadIdx.x) % kWidth;
#pragma unroll 8
    for (int f = static_cast<int>(threadIdx.x) / kWidth; f < kWidth; f += 2) {
      const bool is_there = from.s != nullptr && f < w.D && c < w.Dv;
      s[f * kStateStride + c] = is_there ? from.s[f * from.s_feature + c * from.s_column] : 0.0f;
    }
    for (int f = threadIdx.x; f < kWidth; f += blockDim.x) {
      z[f] = w.has_z && from.z != nullptr && f < w.D ? from.z[f * from.z_feature] : 0.0f;
    }
  }
  SIMT_FN void StoreState(const StateRef& to) const {
    for (int i = threadIdx.x; i < w.D * w.Dv && to.s != nullptr; i += blockDim.x) {
      const int f = i / w.Dv, c = i % w.Dv;
      to.s[f * to.s_feature + c * to.s_column] = s[f * kStateStride + c];
    }
    for (int f = threadIdx.x; f < w.D && to.z != nullptr; f += blockDim.x) {
      to.z[f * to.z_feature] = z[f];
    }
  }
  // d, and in place of queries their sums over values.
  SIMT_FN void SumRows() const {
    float scores[8][4], sums[8][4], ones[2] = {0, 0};
    Clear(scores);
    Clear(sums);
    const float* const q_row = q + (Base::rows16() * 16 + group) * kStride + t;
    const float* const k_row = k + group * kStride + t;
    const float* const s_row = s + t * kStateStride + Base::first_column() + group;
#pragma unroll 1
    for (int f = 0; f < padded; f += 8) {
      const float x[4] = {q_row[f], q_row[8 * kStride + f], q_row[f + 4],
                          q_row[8 * kStride + f + 4]};
      ones[0] += x[0] * z[f + t] + x[2] * z[f + t + 4];
      ones[1] += x[1] * z[f + t] + x[3] * z[f + t + 4];
      SplitRows a;
#pragma unroll
      for (int i = 0; i < 4; ++i) a.Set(i, x[i]);
      AddEight(sums, a, [&](int n, int i) { return s_row[(f + i * 4) * kStateStride + n * 8]; });
      if (!has_keys) continue;
      // Sums of scores may cancel: they keep all bits of keys.
      const auto of_key = [&](int n, int i) { return k_row[n * 8 * kStride + f + i * 4]; };
      AddFour<0, true>(scores, a, of_key);
      if (Base::rows16() >= 2) AddFour<4, true>(scores, a, of_key);
    }
    Weigh(scores, sums, ones);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!has_keys || n / 2 > Base::rows16()) break;
      // Columns t and t + 4 of the left side are keys 2 t and 2 t + 1: those of this lane.
      SplitRows a;
      a.Set(0, scores[n][0]);
      a.Set(1, scores[n][2]);
      a.Set(2, scores[n][1]);
      a.Set(3, scores[n][3]);
      const float* const row = v + (n * 8 + t * 2) * kStride + Base::first_column() + group;
      AddEight(sums, a, [&](int m, int i) { return row[i * kStride + m * 8]; });
    }
    if (is_bad) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int c = Base::first_column() + n * 8 + t * 2 + (i & 1);
          if (bad[c] <= Base::RowOf(i)) sums[n][i] = NAN;
        }
      }
    }
    // Other lanes, and warps of other columns, read the same queries.
    if (kWidth > 64) {
      __syncthreads();
    } else {
      __syncwarp();
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[Base::RowOf(i) * kStride + Base::first_column() + n * 8 + t * 2 + (i & 1)] = sums[n][i];
      }
    }
    if (t == 0) d[group] = ones[0], d[group + 8] = ones[1];
    __syncwarp();
  }
  // Scores of keys that a query sees, as they decay; ones: their sums and what the state gave.
  SIMT_FN void Weigh(float (&scores)[8][4], float (&sums)[8][4], float (&ones)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Base::RowOf(half * 2);
      const float decay = w.key_decays && has_keys ? decays.from_start[row] : 1.0f;
      ones[half] *= decay;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          sums[n][i] *= decay;
          const int key = n * 8 + t * 2 + (i & 1);
          if (key > row) {
            scores[n][i] = 0;
          } else if (w.key_decays && has_keys) {
            scores[n][i] *= decays.Between(key, row);
          }
          ones[half] += scores[n][i];
        }
      }
      ones[half] = SumOfQuad(ones[half]);
    }
  }

  // Two rows at a time, 16 lanes each.
  SIMT_FN void StoreRows(int p, int member) const {
    const int first = p + Base::rows16() * 16, own = first + lane % 16;
    const int begin = segment->tensors[kQueryRows].begin, end = segment->tensors[kQueryRows].end;
    const int64_t h = at.g * w.group() + member, position = Base::begin() + own;
    const int64_t own_i = min(max(position - line.ahead, line.first_query), line.end_query - 1);
    const float own_d = w.has_z ? d[lane % 16] : 0;
    const RowFactor factor(w, own_d, at.b, h, own_i, at.g,
                           min(position - line.lead, line.used_keys - 1));
    if (lane < 16 && own >= begin && own < end && Base::first_column() == 0) {
      if (pass.for_rows) {
        w.row_d[w.Row(at.b, h, own_i)] = own_d;
      } else if (w.lse.given) {
        StoreFloat(w.lse.data, w.lse.dtype, at.b * w.lse.b + h * w.lse.h + own_i * w.lse.n,
                   factor.Lse(own_d));
      }
    }
    const int c = Base::first_column() + lane % 16 * 4;
    const float* const sums = q + Base::rows16() * 16 * kStride + c;
    if (pass.for_rows) {
      StoreDots(first, h, sums, c);
      return;
    }
    const ChunkTensor& out = segment->to;
    const int64_t step = out.row, column = out.column;
    const bool has_fours = out.has_fours;
    const DType dtype = out.dtype;
    const int left = w.Dv - c;
    char* const to = out.At(first, member) + (c * column) * SizeOf(dtype);
#pragma unroll 1
    for (int row = lane / 16; row < 16; row += 2) {
      const float by = __shfl_sync(simt::kAllLanes, factor.factor, row);
      const double log = __shfl_sync(simt::kAllLanes, factor.log, row);
      if (first + row < begin || first + row >= end || left <= 0) continue;
      float x[4];
      LoadFour(sums + row * kStride, x);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = factor.is_log ? Lifted(by * x[e], log) : by * x[e];
      WithFloatType(dtype, [&](auto* type) {
        auto* const at_row = reinterpret_cast<decltype(type)>(to + row * step);
        if (has_fours) {
          StoreFour(at_row, x);
          return;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e < left) Store(at_row + e * column, x[e]);
        }
      });
    }
  }
  SIMT_FN void StoreDots(int first, int64_t h, const float* sums, int c) const {
    if (w.dots == nullptr) return;
#pragma unroll 1
    for (int row = lane / 16; row < 16; row += 2) {
      const int64_t i = QueryAt(line, Base::begin() + first + row);
      float sum = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t from = at.b * w.dout.b + h * w.dout.h + i * w.dout.n + (c + e) * w.dout.d;
        if (i >= 0 && c + e < w.Dv) sum += LoadAt(w.dout, from) * sums[row * kStride + e];
      }
      for (int flip = 1; flip < 16; flip *= 2) sum += __shfl_xor_sync(simt::kAllLanes, sum, flip);
      if (i < 0 || lane % 16 != 0) continue;
      w.dots[Base::first_column() / 64 * w.B * w.H * w.Nq + w.Row(at.b, h, i)] = sum;
    }
  }
};

template <int kWidth>
__global__ void __launch_bounds__(ChunkShape<kWidth>::kThreads, kWidth > 64 ? 1 : 4)
    ScanChunkStates(const __grid_constant__ Problems<ScanWork> problems, ChunkStatesPass pass) {
  const Place<ScanWork> place = FindPlace(problems);
  simt::SharedTiles tiles;
  ChunkStates<kWidth>(place.problem, place.block, &tiles).Run(pass);
}

template <int kWidth>
__global__ void __launch_bounds__(ChunkShape<kWidth>::kThreads, kWidth > 64 ? 1 : 3)
    ScanChunkRows(const __grid_constant__ Problems<ScanWork> problems, ForwardPass pass) {
  const Place<ScanWork> place = FindPlace(problems);
  simt::SharedTiles tiles;
  ChunkRowsWalk<kWidth>(place.problem, place.block, pass, &tiles).Run();
}

}  // namespace attnd::cuda
