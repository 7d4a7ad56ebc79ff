// Walks of scan from the last position to the first, with the gradient R of the state: over columns
// for the gradients of values and what keys write, over features for those of keys and decays.
//
// With dN_i = to_num_i dout_i and dD_i = to_d_i, position by position:
//   R += phi_q dN, r += phi_q dD;  du = R^T phi_k;  dphi_k = R u + b r - S' b du (delta rule)
//   delta rule: R -= phi_k b du;   R, r *= a
// Bounds as of the walks forward.
#pragma once

#include "kernels/cuda/scan/scan_passes.h"
#include "kernels/cuda/scan/scan_walk.cuh"

namespace attnd::cuda {

template <class S, bool kFeatures>
struct BackwardWalk : WalkBlock<S, kFeatures> {
  using Base = WalkBlock<S, kFeatures>;
  using Base::at, Base::count, Base::first, Base::group, Base::lane, Base::line, Base::plan,
      Base::w, Base::walks, Base::is_z;
  const BackwardPass pass;
  const bool has_dlog, loads_yk;
  float *xk, *xq, *x2, *yk, *yq, *o, *decay, *a, *beta, *to_d, *rise, *sums_dlog;
  WalkState<S> state;
  float z[S::kColumns];  // over features

  SIMT_FN BackwardWalk(const ScanWork& work, int64_t block, const BackwardPass& given)
      : Base(work, block, given.whole_lines),
        pass(given),
        has_dlog(kFeatures && work.dlog_decay.given),
        loads_yk(kFeatures && (work.delta || work.dlog_decay.given)) {
    for (int c = 0; c < S::kColumns; ++c) z[c] = 0;
    simt::SharedTiles tiles;
    const size_t rows = static_cast<size_t>(plan.rows), queries = rows * group;
    const size_t pitch = static_cast<size_t>(plan.pitch);
    xk = tiles.Take<float>(rows * S::kK);
    xq = tiles.Take<float>(queries * S::kK);
    x2 = tiles.Take<float>(kFeatures && w.delta ? rows * S::kK : 1);
    yk = tiles.Take<float>(loads_yk ? rows * pitch : 1);
    yq = tiles.Take<float>(queries * pitch);
    o = tiles.Take<float>(rows * pitch);
    decay = tiles.Take<float>(w.feature_decays ? rows * (kFeatures ? pitch : S::kK) : 1);
    a = tiles.Take<float>(rows);
    beta = tiles.Take<float>(rows);
    to_d = tiles.Take<float>(queries);
    rise = tiles.Take<float>(rows);
    sums_dlog = tiles.Take<float>(has_dlog ? pitch : 1);
  }

  SIMT_FN void Run() {
    if (pass.local && !pass.first && at.segment == 0) return;
    const bool whole = !kFeatures && pass.whole_lines;
    const int64_t from = whole ? min(line.segments, pass.cut.end) - 1 : at.segment;
    const int64_t first_segment = whole ? pass.cut.begin : at.segment;
    if (from < first_segment) return;
    const auto elements = Base::Elements(state);
    const bool continues = whole && from + 1 < line.segments;
    if (!pass.local) {
      const StateRef begin = w.adjoints != nullptr && (continues || !whole)
                                 ? Base::StateAt(w.adjoints, from)
                                 : StateRef(w.ds_out, w.dz_out, at.b, at.g);
      elements.Load(state, begin);
      for (int c = 0; c < S::kColumns && kFeatures; ++c) z[c] = elements.OneOfZ(c, begin);
    }
    if (has_dlog) StartDlog();
#pragma unroll 1
    for (int64_t segment = from; segment >= first_segment; --segment) {
      // What the launch before left there is read by blocks beside this one.
      const bool is_there = continues && segment == from;
      if (whole && w.adjoints != nullptr && !is_there) {
        elements.Store(state, Base::StateAt(w.adjoints, segment));
      }
      const int64_t begin = segment * kScanSegment;
      const int64_t end = min(line.positions, begin + kScanSegment);
      // Tiles begin where those of the walks forward do.
#pragma unroll 1
      for (int64_t p = begin + (end - 1 - begin) / plan.rows * plan.rows; p >= begin && end > begin;
           p -= plan.rows) {
        Tile(p, static_cast<int>(min(static_cast<int64_t>(plan.rows), end - p)));
      }
    }
    StateRef to;
    if (pass.local || (whole && first_segment > 0)) {
      to = Base::StateAt(w.adjoints, pass.local ? at.segment : first_segment - 1);
    } else if (!kFeatures && (w.adjoints == nullptr || whole)) {
      // Else those who made the adjoints of segments write the first one.
      to = StateRef(w.ds0, w.dz0, at.b, at.g);
    }
    elements.Store(state, to);
  }

  // What the gradients of decays begin with: R times the state after the segment, summed over
  // columns.
  SIMT_FN void StartDlog() {
    const auto elements = Base::Elements(state);
    const int local = Base::Local(state);
    float sums[S::kColumns];
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) sums[c] = 0;
    const bool is_last = at.segment + 1 == line.segments;
    const bool has_flow = !is_last || w.ds_out.given || w.dz_out.given;
    const float* after = Base::FloatsAt(w.states, at.segment + 1);
    if (has_flow && walks) {
#pragma unroll
      for (int r = 0; r < S::kRows; ++r) {
        const int row = state.Row(r);
        if (row >= w.Dv) continue;
#pragma unroll
        for (int c = 0; c < S::kColumns; ++c) {
          if (c < elements.count) {
            sums[c] += state.m[r][c] * after[int64_t{first + local + c} * (w.Dv + 1) + row];
          }
        }
      }
#pragma unroll
      for (int flip = 1; flip < S::kAcross; flip *= 2) {
#pragma unroll
        for (int c = 0; c < S::kColumns; ++c) {
          sums[c] += __shfl_xor_sync(simt::kAllLanes, sums[c], flip);
        }
      }
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        if (w.has_z && c < elements.count) {
          sums[c] += z[c] * after[int64_t{first + local + c} * (w.Dv + 1) + w.Dv];
        }
      }
    }
    if (walks) state.Put(sums, sums_dlog + local);
  }

  SIMT_FN void Tile(int64_t p, int rows) {
    __syncthreads();  // the last tile has been stored
    if (!pass.local) LoadKeys(p, rows);
    LoadDecays(p, rows);
    const bool finite = LoadQueries(p, rows);
    const bool bad = __syncthreads_or(finite ? 0 : 1) != 0;
    if (walks) Walk(p, rows, bad);
    __syncthreads();
    if (pass.local) return;
    if constexpr (kFeatures) {
      StoreKeys(p, rows);
      if (has_dlog) StoreDecays(p, rows);
    } else {
      StoreValues(p, rows);
    }
  }

  SIMT_FN void LoadKeys(int64_t p, int rows) {
    const int pitch = plan.pitch;
    if constexpr (kFeatures) {
      FillTile(xk, rows, S::kK, S::kK, [&](int t) {
        const int64_t key = KeyAt(line, p + t);
        const float b = BetaOf(w, at.b, at.g, key);
        const RowOfView v = ValuesOf(w.v, at.b, at.g, key, 0, w.Dv, b);
        const float* error =
            w.delta && key >= 0 ? w.errors + w.Key(at.b, at.g, key) * w.Dv : nullptr;
        const RowOfFloats errors{error, w.Dv};
        return [v, errors, b](int c) { return errors.row == nullptr ? v(c) : b * errors(c); };
      });
      if (w.delta) {
        FillTile(x2, rows, S::kK, S::kK, [&](int t) {
          const int64_t key = KeyAt(line, p + t);
          return RowOfFloats{key < 0 ? nullptr : w.dwrites + w.Key(at.b, at.g, key) * w.Dv, w.Dv};
        });
      }
      if (loads_yk) {
        FillTile(yk, rows, pitch, pitch, [&](int t) {
          return KeyFeatures(w, at.b, at.g, KeyAt(line, p + t), first, count);
        });
      }
    } else {
      FillTile(xk, rows, S::kK, S::kK,
               [&](int t) { return KeyFeatures(w, at.b, at.g, KeyAt(line, p + t), 0, w.D); });
    }
  }
  SIMT_FN void LoadDecays(int64_t p, int rows) {
    if (w.feature_decays) {
      const int width = kFeatures ? plan.pitch : S::kK;
      FillTile(decay, rows, width, width, [&](int t) {
        return DecaysOf(w, at.b, at.g, KeyAt(line, p + t), kFeatures ? first : 0,
                        kFeatures ? count : w.D);
      });
    }
#pragma unroll 1
    for (int t = threadIdx.x; t < rows; t += blockDim.x) {
      const int64_t key = KeyAt(line, p + t);
      a[t] = KeyDecay(w, at.b, at.g, key);
      beta[t] = BetaOf(w, at.b, at.g, key);
      rise[t] = expf(TopLift(p + t + 1) - TopLift(p + t));
    }
  }
  // Of R before a position's keys are read.
  SIMT_FN float TopLift(int64_t p) const {
    if (w.top_lift == nullptr || p >= line.positions) return 0;
    return w.top_lift[(at.b * w.Hkv + at.g) * (w.Nq + w.Nk) + p];
  }

  // Returns whether what is written to the state is finite.
  SIMT_FN bool LoadQueries(int64_t p, int rows) {
    const int pitch = plan.pitch;
    const auto ratio = [&](int row, int64_t at_row) {
      if (w.lift == nullptr) return 1.0f;
      return expf(w.lift[at_row] - TopLift(p + row / group));
    };
#pragma unroll 1
    for (int row = threadIdx.x; row < rows * group; row += blockDim.x) {
      const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
      const int64_t from = w.Row(at.b, h, i);
      to_d[row] = i < 0 ? 0 : w.to_d[from] * ratio(row, from);
    }
    const auto gradients = [&](int row, int column, int columns) {
      const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
      const int64_t from = w.Row(at.b, h, i);
      const float factor = i < 0 ? 0 : w.to_num[from] * ratio(row, from);
      return ValuesOf(w.dout, at.b, h, i, column, columns, factor);
    };
    if constexpr (kFeatures) {
      FillTile(xq, rows * group, S::kK, S::kK, [&](int row) { return gradients(row, 0, w.Dv); });
      return FillTile(yq, rows * group, pitch, pitch, [&](int row) {
        const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
        return QueryFeatures(w, at.b, h, i, first, count);
      });
    } else {
      FillTile(xq, rows * group, S::kK, S::kK, [&](int row) {
        const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
        return QueryFeatures(w, at.b, h, i, 0, w.D);
      });
      return FillTile(yq, rows * group, pitch, pitch, [&](int row) {
        const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
        const int64_t from = w.Row(at.b, h, i);
        const RowOfView dn = gradients(row, first, count);
        const float dd = i < 0 || !w.has_z ? 0 : w.to_d[from] * ratio(row, from);
        const int one = w.has_z ? plan.columns : -1;
        return [dn, dd, one](int c) { return c == one ? dd : dn(c); };
      });
    }
  }

  SIMT_FN void Walk(int64_t p, int rows, bool bad) {
    const int local = Base::Local(state), pitch = plan.pitch;
#pragma unroll 1
    for (int t = rows - 1; t >= 0; --t) {
      if (rise[t] != 1) ScaleAll(rise[t]);
#pragma unroll 1
      for (int row = t * group; row < (t + 1) * group && QueryAt(line, p + t) >= 0; ++row) {
        float y[S::kColumns];
        state.Get(yq + row * pitch + local, y);
        state.Write(xq + row * S::kK, y);
        if (bad) state.ClearBeyond(plan.K);
        if (kFeatures && w.has_z) {
          const float d = to_d[row];
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c) z[c] += y[c] * d;
        }
      }
      if (KeyAt(line, p + t) < 0) continue;
      if (!pass.local) ReadKey(t, local, bad);
      if (w.feature_decays) {
        if constexpr (kFeatures) {
          state.ScaleColumns(decay + t * pitch + local);
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c) z[c] *= decay[t * pitch + local + c];
        } else {
          state.ScaleRows(decay + t * S::kK);
        }
      } else if (a[t] != 1) {
        ScaleAll(a[t]);
      }
    }
  }
  SIMT_FN void ScaleAll(float factor) {
    state.Scale(factor);
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) z[c] *= factor;
  }
  SIMT_FN void ReadKey(int t, int local, bool bad) {
    float sums[S::kColumns];
    state.Read(xk + t * S::kK, sums);
    const float b = beta[t];
    if constexpr (kFeatures) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) sums[c] += b * z[c];
    }
    state.Put(sums, o + t * plan.pitch + local);
    if (!w.delta || is_z) return;
    float y[S::kColumns];
    if constexpr (kFeatures) {
      state.Get(yk + t * plan.pitch + local, y);
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) y[c] = -y[c];
    } else {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) y[c] = -b * sums[c];
    }
    state.Write((kFeatures ? x2 : xk) + t * S::kK, y);
    if (bad) state.ClearBeyond(plan.K);
  }

  SIMT_FN void StoreValues(int64_t p, int rows) {
    Base::ForEachRow(rows, [&](int t) {
      const int64_t key = KeyAt(line, p + t);
      if (key < 0) return;
      const float* du = o + t * plan.pitch;
      const int64_t number = w.Key(at.b, at.g, key);
      const double lift = TopLift(p + t);
      const float b = beta[t];
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) {
        const float dv = b * du[c];
        if (w.dwrites != nullptr) w.dwrites[number * w.Dv + first + c] = dv;
        if (!w.dv.given) continue;
        StoreFloat(w.dv.data, w.dv.dtype,
                   at.b * w.dv.b + at.g * w.dv.h + key * w.dv.n + (first + c) * w.dv.d,
                   Lifted(dv, lift));
      }
      if (w.dbetas == nullptr) return;
      const RowOfView v = ValuesOf(w.v, at.b, at.g, key, first, count);
      const float* error = w.delta ? w.errors + number * w.Dv + first : nullptr;
      float sum = 0;
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) {
        sum += du[c] * (error != nullptr ? error[c] : v(c));
      }
      sum = simt::WarpSum(sum);
      if (lane != 0) return;
      if (at.slice == 0 && w.has_z) sum += du[plan.columns];
      w.dbetas[at.slice * w.B * w.Hkv * w.Nk + number] = sum;
    });
  }

  SIMT_FN void StoreKeys(int64_t p, int rows) {
    if (!w.dk.given) return;
    Base::ForEachRow(rows, [&](int t) {
      const int64_t key = KeyAt(line, p + t);
      if (key < 0) return;
      const RowOfFeatures k = KeyFeatures(w, at.b, at.g, key, first, count);
      const float* stored = w.delta ? w.stored + w.Key(at.b, at.g, key) * w.D + first : nullptr;
      const double lift = TopLift(p + t);
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) {
        float dphi = o[t * plan.pitch + c];
        if (stored != nullptr) dphi -= stored[c];
        const float dk = Derivative(w.map, k.raw(c), k(c)) * dphi;
        StoreFloat(w.dk.data, w.dk.dtype,
                   at.b * w.dk.b + at.g * w.dk.h + key * w.dk.n + (first + c) * w.dk.d,
                   Lifted(dk, lift));
      }
    });
  }

  // The gradient of a log decay is R' . S', summed over columns. From one position to the one
  // before it grows by what queries read, and shrinks by what the key wrote.
  SIMT_FN void StoreDecays(int64_t p, int rows) {
    __syncthreads();  // o is overwritten
    for (int c = threadIdx.x; c < count; c += blockDim.x) {
      float sum = sums_dlog[c];
#pragma unroll 1
      for (int t = rows - 1; t >= 0; --t) {
        const int64_t i = QueryAt(line, p + t), key = KeyAt(line, p + t);
        if (i >= 0) sum += w.flow[((at.b * w.Hkv + at.g) * w.Nq + i) * w.D + first + c];
        if (key < 0) continue;
        float dphi = o[t * plan.pitch + c];
        if (w.delta) dphi += w.stored[w.Key(at.b, at.g, key) * w.D + first + c];
        sum -= yk[t * plan.pitch + c] * dphi;
        if ((w.feature_decays ? decay[t * plan.pitch + c] : a[t]) == 0) sum = 0;
        o[t * plan.pitch + c] = sum;
        const ScanView& to = w.dlog_decay;
        if (!w.feature_decays) continue;
        StoreFloat(to.data, to.dtype, at.b * to.b + at.g * to.h + key * to.n + (first + c) * to.d,
                   sum);
      }
      sums_dlog[c] = sum;
    }
    if (w.feature_decays) return;
    __syncthreads();
    Base::ForEachRow(rows, [&](int t) {
      const int64_t key = KeyAt(line, p + t);
      if (key < 0) return;
      float sum = 0;
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) sum += o[t * plan.pitch + c];
      sum = simt::WarpSum(sum);
      if (lane == 0) {
        w.dlogs[at.slice * w.B * w.Hkv * w.Nk + w.Key(at.b, at.g, key)] = sum;
      }
    });
  }
};

template <class S, bool kFeatures>
__global__ void __launch_bounds__(kWalkMostWarps* simt::kWarp)
    ScanBackward(const __grid_constant__ Problems<ScanWork> problems, BackwardPass pass) {
  const Place<ScanWork> place = FindPlace(problems);
  BackwardWalk<S, kFeatures>(place.problem, place.block, pass).Run();
}

}  // namespace attnd::cuda
