// Gradients of scan's chunks on tensor cores: for queries, from states before segments, and for
// keys and values, from the gradients R, r of states after them.
//
// With dN_i = to_num_i dout_i, dD_i = to_d_i, and L as in scan_chunks.cuh, where i >= j:
//   dphi_q,i = e^L_i (S dN_i + z dD_i) + sum of e^(L_i - L_j) (dN_i . v_j + dD_i) b_j phi_k,j
//   dphi_k,j = b_j (e^(L - L_j) (R v_j + r) + sum of e^(L_i - L_j) (v_j . dN_i + dD_i) phi_q,i)
//   dv_j = b_j (e^(L - L_j) R^T phi_k,j + sum of e^(L_i - L_j) (phi_k,j . phi_q,i) dN_i)
// Each is one shape: left rows read the state and see right rows, whose values they add up; queries
// see earlier keys, keys see later queries.
#pragma once

#include "kernels/cuda/scan/scan_chunk_block.cuh"

namespace attnd::cuda {

// What a walk's rows are.
struct ChunkFlow {
  ChunkRole left, right, values;
  bool is_forward;      // left rows are queries
  bool has_ones;        // dD and z, or r
  bool is_of_features;  // what is written is a gradient of features; the state is transposed

  SIMT_FN ChunkFlow(const ScanWork& w, ChunkGradPass pass) {
    is_forward = pass.of == ChunkGradPass::kQueries;
    is_of_features = pass.of != ChunkGradPass::kValues;
    has_ones = is_of_features && w.has_z;
    left = is_forward ? kGradientRows : is_of_features ? kValueRows : kKeyRows;
    right = is_forward ? kValueRows : is_of_features ? kGradientRows : kQueryRows;
    values = is_forward ? kKeyRows : is_of_features ? kQueryRows : kGradientRows;
  }
};

// dphi to the gradient of four elements.
SIMT_FN void DeriveFour(FeatureMap map, float shift, float offset, const float (&raw)[4],
                        float (&x)[4]) {
  if (map == FeatureMap::kIdentity) return;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (map == FeatureMap::kEluPlusOne) {
      x[e] *= raw[e] > 0 ? 1.0f : expf(raw[e]);
    } else {
      x[e] *= Derivative(map, raw[e], Feature(map, raw[e], shift, offset));
    }
  }
}

template <int kWidth>
struct ChunkGrad : ChunkBlock<kWidth> {
  using Base = ChunkBlock<kWidth>;
  using Base::at, Base::bad, Base::decays, Base::group, Base::is_bad, Base::k, Base::kStateStride,
      Base::kStride, Base::lane, Base::line, Base::padded, Base::segment, Base::t, Base::to_d,
      Base::v, Base::w, Base::warp, Base::z;
  const ChunkFlow flow;
  const int columns;  // of the state
  float *left, *s;    // z: a row of columns that belongs to ones

  SIMT_FN ChunkGrad(const ScanWork& work, int64_t block, const ChunkGradPass& pass,
                    simt::SharedTiles* tiles)
      : Base(work, block, pass.of == ChunkGradPass::kValues ? work.D : work.Dv, tiles),
        flow(work, pass),
        columns(flow.is_of_features ? work.D : work.Dv),
        left(tiles->Take<float>(kChunk * kStride)),
        s(tiles->Take<float>(kWidth * kStateStride)) {}

  SIMT_FN void Run() {
    if (flow.is_forward) {
      LoadState(w.states != nullptr ? Base::OfSegment(w.states) : StateRef(w.s0, w.z0, at.b, at.g));
    } else {
      LoadState(w.adjoints != nullptr ? Base::OfSegment(w.adjoints)
                                      : StateRef(w.ds_out, w.dz_out, at.b, at.g));
    }
    if (threadIdx.x == 0) SetOutput();
    const int positions = Base::positions(), chunks = (positions + kChunk - 1) / kChunk;
    const int members = w.group();
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      const int p = (flow.is_forward ? i : chunks - 1 - i) * kChunk;
      float sums[8][4];
#pragma unroll 1
      for (int member = 0; member < members; ++member) {
        const bool is_last = member + 1 == members;
        __syncthreads();  // what came before has been read, and the state is there
        const bool has_left = Base::Has(flow.left, p), has_right = Base::Has(flow.right, p);
        Load(p, member);
        if (has_left) {
          if (member == 0 || flow.is_forward) ReadState(sums);
          if (has_right) AddSeen(sums);
          if (is_last || flow.is_forward) {
            // Other lanes, and warps of other columns, read the same rows.
            if (kWidth > 64) {
              __syncthreads();
            } else {
              __syncwarp();
            }
            Put(sums);
            StoreRows(p, flow.is_forward ? member : 0);
          }
        }
        const bool advances = is_last || !flow.is_forward;
        if (!advances || i + 1 == chunks || !(has_right || w.key_decays)) continue;
        __syncthreads();  // the state has been read
        Advance(flow.is_forward || member == 0 ? Base::Decay() : 1.0f);
      }
    }
  }

 private:
  // As the walk reads it, zeros beyond its rows and columns.
  SIMT_FN void LoadState(const StateRef& from) {
    const int64_t by_row = flow.is_of_features ? from.s_column : from.s_feature;
    const int64_t by_column = flow.is_of_features ? from.s_feature : from.s_column;
    const int rows = flow.is_of_features ? w.Dv : w.D;
    const int along = static_cast<int>(threadIdx.x) % kWidth;
#pragma unroll 8
    for (int across = static_cast<int>(threadIdx.x) / kWidth; across < kWidth; across += 2) {
      // Neighbours read neighbours.
      const int row = flow.is_of_features ? along : across;
      const int column = flow.is_of_features ? across : along;
      const bool is_there = from.s != nullptr && row < rows && column < columns;
      s[row * kStateStride + column] = is_there ? from.s[row * by_row + column * by_column] : 0.0f;
    }
    for (int c = threadIdx.x; c < kWidth; c += blockDim.x) {
      const bool is_there = flow.has_ones && from.z != nullptr && c < columns;
      z[c] = is_there ? from.z[c * from.z_feature] : 0.0f;
    }
  }
  SIMT_FN void SetOutput() const {
    const int64_t query = Base::begin() - line.ahead, key = Base::begin() - line.lead;
    if (flow.is_forward) {
      segment->to.Set(w.dq, at.b, at.g * w.group(), query, line.first_query, line.end_query, w.D);
    } else {
      segment->to.Set(flow.is_of_features ? w.dk : w.dv, at.b, at.g, key, 0, line.used_keys,
                      columns);
    }
  }

  SIMT_FN void Load(int p, int member) {
    const bool loads_left = member == 0 || flow.is_forward;
    const bool loads_right = member == 0 || !flow.is_forward;
    if (loads_left) Base::Start(left, flow.left, p, member, padded);
    if (loads_right) {
      Base::Start(k, flow.right, p, member, padded);
      Base::Start(v, flow.values, p, member, kWidth);
    }
    simt::CopyCommit();
    simt::CopyWait<0>();
    if (loads_left) Base::Finish(left, flow.left, p, member, padded);
    bool finite = true;
    if (loads_right) {
      Base::Finish(k, flow.right, p, member, padded);
      finite = Base::Finish(v, flow.values, p, member, kWidth);
    }
    if (flow.has_ones) Base::LoadToD(p, member);
    if (member == 0) Base::SumDecays(p);
    const bool some_bad = __syncthreads_or(finite ? 0 : 1) != 0;
    if (!loads_right) return;
    is_bad = some_bad;
    if (is_bad) Base::SetBadAside(flow.is_forward);
  }

  SIMT_FN void SetLeft(SplitRows* a, int f) const {
    const float* const x = left + (Base::rows16() * 16 + group) * kStride + f + t;
    a->Set(0, x[0]);
    a->Set(1, x[8 * kStride]);
    a->Set(2, x[4]);
    a->Set(3, x[8 * kStride + 4]);
  }
  SIMT_FN void ReadState(float (&sums)[8][4]) const {
    Clear(sums);
    const float* const s_row = s + t * kStateStride + Base::first_column() + group;
#pragma unroll 1
    for (int f = 0; f < padded; f += 8) {
      SplitRows a;
      SetLeft(&a, f);
      AddEight(sums, a, [&](int n, int i) { return s_row[(f + i * 4) * kStateStride + n * 8]; });
    }
    const float* const decay = flow.is_forward ? decays.from_start : decays.to_end;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Base::RowOf(i), c = Base::first_column() + n * 8 + t * 2 + (i & 1);
        if (flow.has_ones) sums[n][i] += (flow.is_forward ? to_d[row] : 1.0f) * z[c];
        sums[n][i] *= decay[row];
      }
    }
  }
  SIMT_FN void AddSeen(float (&sums)[8][4]) const {
    float scores[8][4];
    Clear(scores);
    const int rows16 = Base::rows16();
    // Tiles of four by eight right rows, of which this warp's see some.
    const bool sees_low = flow.is_forward || rows16 < 2,
               sees_high = !flow.is_forward || rows16 >= 2;
    const float* const k_row = k + group * kStride + t;
#pragma unroll 1
    for (int f = 0; f < padded; f += 8) {
      SplitRows a;
      SetLeft(&a, f);
      const auto right = [&](int n, int i) { return k_row[n * 8 * kStride + f + i * 4]; };
      if (sees_low) AddFour<0>(scores, a, right);
      if (sees_high) AddFour<4>(scores, a, right);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Base::RowOf(i), key = n * 8 + t * 2 + (i & 1);
        if (flow.is_forward ? key > row : key < row) {
          scores[n][i] = 0;
          continue;
        }
        if (flow.has_ones) scores[n][i] += to_d[flow.is_forward ? row : key];
        if (w.key_decays) scores[n][i] *= decays.Between(min(row, key), max(row, key));
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (flow.is_forward ? n / 2 > rows16 : n / 2 < rows16) continue;
      // Columns t and t + 4 of the left side are right rows 2 t and 2 t + 1: those of this lane.
      SplitRows a;
      a.Set(0, scores[n][0]);
      a.Set(1, scores[n][2]);
      a.Set(2, scores[n][1]);
      a.Set(3, scores[n][3]);
      const float* const row = v + (n * 8 + t * 2) * kStride + Base::first_column() + group;
      AddEight(sums, a, [&](int m, int i) { return row[i * kStride + m * 8]; });
    }
    if (!is_bad) return;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Base::RowOf(i),
                  at_bad = bad[Base::first_column() + n * 8 + t * 2 + (i & 1)];
        if (flow.is_forward ? at_bad <= row : at_bad >= row) sums[n][i] = NAN;
      }
    }
  }
  // s = decay s + the chunk's, and z.
  SIMT_FN void Advance(float decay) {
    const float* const weights = flow.is_forward ? decays.to_end : decays.from_start;
#pragma unroll 1
    for (int part = 0; part < kWidth; part += 64) {
      float own[8][4];
      Base::ForEachOfState(s, own, part, [](float& x, float* at_s) { x = *at_s; });
      Base::Advance(own, part, decay, weights);
      Base::ForEachOfState(s, own, part, [](float& x, float* at_s) { *at_s = x; });
    }
    for (int c = threadIdx.x; c < columns && flow.has_ones; c += blockDim.x) {
      float sum = 0;
#pragma unroll 8
      for (int row = 0; row < kChunk; ++row) {
        sum += (flow.is_forward ? weights[row] : weights[row] * to_d[row]) * v[row * kStride + c];
      }
      z[c] = decay * z[c] + sum;
      if (is_bad && static_cast<unsigned>(bad[c]) < kChunk) z[c] = NAN;
    }
  }

  // The warp's own rows and columns, in place of left rows.
  SIMT_FN void Put(const float (&sums)[8][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        left[Base::RowOf(i) * kStride + Base::first_column() + n * 8 + t * 2 + (i & 1)] =
            sums[n][i];
      }
    }
    __syncwarp();
  }
  // Two rows at a time, 16 lanes each.
  SIMT_FN void StoreRows(int p, int member) const {
    const int c = Base::first_column() + lane % 16 * 4;
    if (c >= columns) return;
    const ChunkTensor& to = segment->to;
    const ChunkTensor& raw = segment->tensors[flow.is_forward ? kQueryRows : kKeyRows];
    const float* shift = flow.is_forward ? segment->q_shift : segment->k_shift;
    if (flow.is_forward && shift != nullptr) shift += member * w.Nq;
    const float* const beta = flow.is_forward ? nullptr : segment->beta;
#pragma unroll 1
    for (int row = Base::rows16() * 16 + lane / 16, end = row + 16; row < end; row += 2) {
      const int at_row = p + row;
      if (at_row < to.begin || at_row >= to.end) continue;
      float x[4];
      LoadFour(left + row * kStride + c, x);
      if (flow.is_of_features) {
        float in[4];
        raw.Read(at_row, member, c, in);
        DeriveFour(w.map, shift == nullptr ? 0 : shift[at_row], w.offset, in, x);
        const float factor = beta == nullptr ? 1 : beta[at_row * segment->beta_row];
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] *= factor;
      }
      to.Write(at_row, member, c, x);
    }
  }
};

template <int kWidth>
__global__ void __launch_bounds__(ChunkShape<kWidth>::kThreads, kWidth > 64 ? 1 : 2)
    ScanChunkGrad(const __grid_constant__ Problems<ScanWork> problems, ChunkGradPass pass) {
  const Place<ScanWork> place = FindPlace(problems);
  simt::SharedTiles tiles;
  ChunkGrad<kWidth>(place.problem, place.block, pass, &tiles).Run();
}

}  // namespace attnd::cuda
