// Walks of scan from the first position to the last: of S over columns, for out or for what rows
// need in the backward, and over features, for the gradients of queries.
// FLOP: 4 K N a key and query and the delta rule 2 K N more, in float32 FMA; bytes: rows of q, k,
// v, out once for each slice of columns. Bound by FMA from D 32 on.
#pragma once

#include "kernels/cuda/scan/scan_passes.h"
#include "kernels/cuda/scan/scan_walk.cuh"

namespace attnd::cuda {

// kWholeLines: ForwardPass::whole_lines, over columns alone. A kernel of its own, since with its
// registers other walks would have one block a processor where they have two.
template <class S, bool kFeatures, bool kWholeLines>
struct ForwardWalk : WalkBlock<S, kFeatures> {
  using Base = WalkBlock<S, kFeatures>;
  using Base::at, Base::count, Base::first, Base::group, Base::lane, Base::line, Base::plan,
      Base::w, Base::walks, Base::is_z;
  const ForwardPass pass;
  float *xk, *xq, *x2, *y, *o, *r, *decay, *a, *beta, *to_d;
  WalkState<S> state;
  float z[S::kColumns];  // over features

  SIMT_FN ForwardWalk(const ScanWork& work, int64_t block, const ForwardPass& given)
      : Base(work, block, kWholeLines), pass(given) {
    for (int c = 0; c < S::kColumns; ++c) z[c] = 0;
    simt::SharedTiles tiles;
    const size_t rows = static_cast<size_t>(plan.rows), queries = rows * group;
    const size_t pitch = static_cast<size_t>(plan.pitch);
    xk = tiles.Take<float>(rows * S::kK);
    xq = tiles.Take<float>(queries * S::kK);
    x2 = tiles.Take<float>(kFeatures && w.delta ? rows * S::kK : 1);
    y = tiles.Take<float>(rows * pitch);
    o = tiles.Take<float>(queries * pitch);
    r = tiles.Take<float>(w.delta ? rows * pitch : 1);
    decay = tiles.Take<float>(w.feature_decays ? rows * (kFeatures ? pitch : S::kK) : 1);
    a = tiles.Take<float>(rows);
    beta = tiles.Take<float>(rows);
    to_d = tiles.Take<float>(queries);
  }

  SIMT_FN void Run() {
    if (pass.local && !pass.last && at.segment + 1 == line.segments) return;
    const int64_t begin = kWholeLines ? pass.cut.begin : at.segment;
    const int64_t end = kWholeLines ? min(line.segments, pass.cut.end) : at.segment + 1;
    if (begin >= end) return;
    const auto elements = Base::Elements(state);
    const bool keeps = kWholeLines && pass.for_rows && w.states != nullptr;
    const bool continues = kWholeLines && begin > 0;
    if (!pass.local) {
      float* before = nullptr;
      if (kWholeLines ? continues && keeps : w.states != nullptr) {
        before = Base::FloatsAt(w.states, begin);
      } else if (continues) {
        before = Base::CarryAt(pass.cut.is_odd);
      }
      const StateRef from =
          before != nullptr ? StateRef(w, before) : StateRef(w.s0, w.z0, at.b, at.g);
      elements.Load(state, from);
      for (int c = 0; c < S::kColumns && kFeatures; ++c) z[c] = elements.OneOfZ(c, from);
    }
#pragma unroll 1
    for (int64_t segment = begin; segment < end; ++segment) {
      // What the launch before left there is read by blocks beside this one.
      const bool is_there = continues && segment == begin;
      if (keeps && !is_there) elements.Store(state, Base::StateAt(w.states, segment));
      const int64_t last = min(line.positions, (segment + 1) * kScanSegment);
#pragma unroll 1
      for (int64_t p = segment * kScanSegment; p < last; p += plan.rows) {
        const int rows = static_cast<int>(min(static_cast<int64_t>(plan.rows), last - p));
        Tile(p, rows);
      }
    }
    float* after = nullptr;
    if (keeps || pass.local) {
      after = Base::FloatsAt(w.states, keeps ? end : at.segment);
    } else if (kWholeLines && end < line.segments) {
      after = Base::CarryAt(!pass.cut.is_odd);
    }
    StateRef to;
    if (after != nullptr) {
      to = StateRef(w, after);
    } else if (!kFeatures && (w.states == nullptr || kWholeLines)) {
      // Else those who made the states of segments write the last one.
      to = StateRef(w.s_out, w.z_out, at.b, at.g);
    }
    elements.Store(state, to);
  }

  SIMT_FN void Tile(int64_t p, int rows) {
    __syncthreads();  // the last tile has been stored
    const bool finite = LoadKeys(p, rows);
    if (!pass.local) LoadQueries(p, rows);
    const bool bad = __syncthreads_or(finite ? 0 : 1) != 0;
    if (walks) Walk(p, rows, bad);
    __syncthreads();
    if constexpr (kFeatures) {
      StoreGradients(p, rows);
    } else {
      if (pass.for_rows) {
        StoreRows(p, rows);
      } else if (!pass.local) {
        StoreOut(p, rows);
      }
    }
  }

  // Returns whether what is written to the state is finite.
  SIMT_FN bool LoadKeys(int64_t p, int rows) {
    const int pitch = plan.pitch;
    bool finite;
    if constexpr (kFeatures) {
      FillTile(xk, rows, S::kK, S::kK, [&](int t) {
        return Values(KeyAt(line, p + t), w.errors, BetaOf(w, at.b, at.g, KeyAt(line, p + t)));
      });
      if (w.delta) {
        FillTile(x2, rows, S::kK, S::kK, [&](int t) {
          const int64_t key = KeyAt(line, p + t);
          return RowOfFloats{key < 0 ? nullptr : w.dwrites + w.Key(at.b, at.g, key) * w.Dv, w.Dv};
        });
      }
      finite = FillTile(y, rows, pitch, pitch, [&](int t) {
        return KeyFeatures(w, at.b, at.g, KeyAt(line, p + t), first, count);
      });
    } else {
      FillTile(xk, rows, S::kK, S::kK,
               [&](int t) { return KeyFeatures(w, at.b, at.g, KeyAt(line, p + t), 0, w.D); });
      finite = FillTile(y, rows, pitch, pitch, [&](int t) {
        const RowOfView v = ValuesOf(w.v, at.b, at.g, KeyAt(line, p + t), first, count);
        const int one = w.has_z ? plan.columns : -1;
        return [v, one](int c) { return c == one ? 1.0f : v(c); };
      });
    }
    if (w.feature_decays) {
      FillTile(decay, rows, kFeatures ? pitch : S::kK, kFeatures ? pitch : S::kK, [&](int t) {
        return DecaysOf(w, at.b, at.g, KeyAt(line, p + t), kFeatures ? first : 0,
                        kFeatures ? count : w.D);
      });
    }
#pragma unroll 1
    for (int t = threadIdx.x; t < rows; t += blockDim.x) {
      const int64_t key = KeyAt(line, p + t);
      a[t] = KeyDecay(w, at.b, at.g, key);
      beta[t] = BetaOf(w, at.b, at.g, key);
    }
    return finite;
  }
  // What a key writes: values or, by the delta rule, errors.
  struct Written {
    RowOfView values;
    RowOfFloats errors;
    float beta;
    SIMT_FN float operator()(int c) const {
      return errors.row != nullptr ? beta * errors(c) : values(c);
    }
  };
  SIMT_FN Written Values(int64_t key, const float* errors, float by) const {
    const bool is_delta = errors != nullptr && key >= 0;
    return {ValuesOf(w.v, at.b, at.g, key, 0, w.Dv, by),
            {is_delta ? errors + w.Key(at.b, at.g, key) * w.Dv : nullptr, w.Dv},
            by};
  }

  SIMT_FN void LoadQueries(int64_t p, int rows) {
    FillTile(xq, rows * group, S::kK, S::kK, [&](int row) {
      const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
      if constexpr (kFeatures) {
        const float factor = i < 0 ? 0 : w.to_num[w.Row(at.b, h, i)];
        return ValuesOf(w.dout, at.b, h, i, 0, w.Dv, factor);
      } else {
        return QueryFeatures(w, at.b, h, i, 0, w.D);
      }
    });
    if constexpr (kFeatures) {
#pragma unroll 1
      for (int row = threadIdx.x; row < rows * group; row += blockDim.x) {
        const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
        to_d[row] = i < 0 ? 0 : w.to_d[w.Row(at.b, h, i)];
      }
    }
  }

  SIMT_FN void Walk(int64_t p, int rows, bool bad) {
    const int local = Base::Local(state), pitch = plan.pitch;
#pragma unroll 1
    for (int t = 0; t < rows; ++t) {
      if (KeyAt(line, p + t) >= 0) AddKey(t, local, bad);
      if (pass.local || QueryAt(line, p + t) < 0) continue;
#pragma unroll 1
      for (int row = t * group; row < (t + 1) * group; ++row) {
        float sums[S::kColumns];
        state.Read(xq + row * S::kK, sums);
        if (kFeatures && w.has_z) {
          const float d = to_d[row];
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c) sums[c] += z[c] * d;
        }
        state.Put(sums, o + row * pitch + local);
      }
    }
  }
  SIMT_FN void AddKey(int t, int local, bool bad) {
    const int pitch = plan.pitch;
    if (w.feature_decays) {
      if constexpr (kFeatures) {
        state.ScaleColumns(decay + t * pitch + local);
#pragma unroll
        for (int c = 0; c < S::kColumns; ++c) z[c] *= decay[t * pitch + local + c];
      } else {
        state.ScaleRows(decay + t * S::kK);
      }
    } else if (a[t] != 1) {
      state.Scale(a[t]);
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) z[c] *= a[t];
    }
    float write[S::kColumns], sums[S::kColumns];
    state.Get(y + t * pitch + local, write);
    if (w.delta) {
      state.Read((kFeatures ? x2 : xk) + t * S::kK, sums);
      if (!kFeatures && !is_z) {
#pragma unroll
        for (int c = 0; c < S::kColumns; ++c) sums[c] = write[c] = write[c] - sums[c];
      }
      state.Put(sums, r + t * pitch + local);
    }
    const float b = beta[t];
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      if (kFeatures) {
        z[c] += b * write[c];
      } else {
        write[c] *= b;
      }
    }
    state.Write(xk + t * S::kK, write);
    if (bad) state.ClearBeyond(plan.K);
  }

  SIMT_FN void StoreOut(int64_t p, int rows) {
    Base::ForEachRow(rows * group, [&](int row) {
      const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
      if (i < 0) return;
      const float* num = o + row * plan.pitch;
      const float d = w.has_z ? num[plan.columns] : 0;
      const ScanView& out = w.out;
      const int64_t to = at.b * out.b + h * out.h + i * out.n + first * out.d;
      const RowFactor factor(w, d, at.b, h, i, at.g, KeyOf(p + row / group));
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) {
        StoreFloat(out.data, out.dtype, to + c * out.d, factor.Apply(num[c]));
      }
      if (at.slice == 0 && lane == 0 && w.lse.given) {
        const int64_t place = at.b * w.lse.b + h * w.lse.h + i * w.lse.n;
        StoreFloat(w.lse.data, w.lse.dtype, place, factor.Lse(d));
      }
    });
  }
  // The last key that the query of a position sees.
  SIMT_FN int64_t KeyOf(int64_t p) const { return min(p - line.lead, line.used_keys - 1); }

  SIMT_FN void StoreRows(int64_t p, int rows) {
    Base::ForEachRow(rows * group, [&](int row) {
      const int64_t i = QueryAt(line, p + row / group), h = at.g * group + row % group;
      if (i < 0) return;
      const float* num = o + row * plan.pitch;
      const int64_t to = w.Row(at.b, h, i);
      if (w.dots != nullptr) {
        const RowOfView dout = ValuesOf(w.dout, at.b, h, i, first, count);
        float sum = 0;
#pragma unroll 1
        for (int c = lane; c < count; c += simt::kWarp) sum += dout(c) * num[c];
        sum = simt::WarpSum(sum);
        if (lane == 0) w.dots[at.slice * w.B * w.H * w.Nq + to] = sum;
      }
      if (at.slice == 0 && lane == 0) w.row_d[to] = w.has_z ? num[plan.columns] : 0;
    });
    if (!w.delta) return;
    Base::ForEachRow(rows, [&](int t) {
      const int64_t key = KeyAt(line, p + t);
      if (key < 0) return;
      float* to = w.errors + w.Key(at.b, at.g, key) * w.Dv + first;
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) to[c] = r[t * plan.pitch + c];
    });
  }

  SIMT_FN void StoreGradients(int64_t p, int rows) {
    Base::ForEachRow(rows, [&](int t) {
      const int64_t i = QueryAt(line, p + t), key = KeyAt(line, p + t);
      if (key >= 0 && w.stored != nullptr) {
        float* to = w.stored + w.Key(at.b, at.g, key) * w.D + first;
#pragma unroll 1
        for (int c = lane; c < count; c += simt::kWarp) to[c] = r[t * plan.pitch + c];
      }
      if (i < 0) return;
      float* flow = w.flow == nullptr ? nullptr : w.flow + ((at.b * w.Hkv + at.g) * w.Nq + i) * w.D;
#pragma unroll 1
      for (int c = lane; c < count; c += simt::kWarp) {
        float sum = 0;
#pragma unroll 1
        for (int member = 0; member < group; ++member) {
          const int64_t h = at.g * group + member;
          const float dphi = o[(t * group + member) * plan.pitch + c];
          const RowOfFeatures q = QueryFeatures(w, at.b, h, i, first, count);
          const float phi = q(c);
          sum += phi * dphi;
          if (!w.dq.given) continue;
          float dq = Derivative(w.map, q.raw(c), phi) * dphi;
          if (w.lift != nullptr) dq = Lifted(dq, w.lift[w.Row(at.b, h, i)]);
          StoreFloat(w.dq.data, w.dq.dtype,
                     at.b * w.dq.b + h * w.dq.h + i * w.dq.n + (first + c) * w.dq.d, dq);
        }
        if (flow != nullptr) flow[first + c] = sum;
      }
    });
  }
};

template <class S, bool kFeatures, bool kWholeLines>
__global__ void __launch_bounds__(kWalkMostWarps* simt::kWarp)
    ScanForward(const __grid_constant__ Problems<ScanWork> problems, ForwardPass pass) {
  const Place<ScanWork> place = FindPlace(problems);
  ForwardWalk<S, kFeatures, kWholeLines>(place.problem, place.block, pass).Run();
}

}  // namespace attnd::cuda
