// Products of the relative term for the gradient of attend: the same steps as the forward's
// (attend_relative.cuh), so that both find the same bits. Part of GradPair.
#pragma once

#include "kernels/cuda/attend/attend_grad_pair.cuh"

namespace attnd::cuda::attend_grad {

template <class T, GradPass kPass, bool kTerms>
SIMT_FN void GradPair<T, kPass, kTerms>::FindRelatives(const GradStep& step) {
  const int64_t q_tile = kPass == GradPass::kKeys ? step.other_tile : own_tile;
  const int64_t k_tile = kPass == GradPass::kKeys ? own_tile : step.other_tile;
  const RelativeWindow window =
      RelativeWindow::Of(RangeOfRows(head().QueryRows(q_tile * kSide)),
                         RangeOfRows(head().KeyRows(k_tile * kSide)), head().offset, p.a.L);
  relative_first_ = window.is_shared ? static_cast<int32_t>(window.first) : -1;
  if (!window.is_shared) return;
  const HeadRows q_rel = HeadRows::Of(p.a.q_rel, head().b, head().h);
  const HeadRows r = HeadRows::Of(p.a.r, head().b, head().h);
  const bool copies_q = CopiesRows<float>(q_rel, p.a.D), copies_r = CopiesRows<float>(r, p.a.D);
  const int32_t* query_rows = kPass == GradPass::kKeys ? m.other_rows : m.own_rows;
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    Fragment products;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) products[n][i] = 0;
    }
#pragma unroll 1
    for (int c = 0; c < p.columns; ++c) {
      __syncthreads();
      if (threadIdx.x < kSide) {
        const int64_t delta = window.first + part * kSide + threadIdx.x;
        m.relative_rows[threadIdx.x] = delta < p.a.L ? static_cast<int32_t>(delta) : -1;
      }
      __syncthreads();
      LoadTile(m.own, {q_rel, q_rel, INT64_MAX, p.a.D, copies_q}, query_rows, c * kSide);
      LoadTile(m.other, {r, r, INT64_MAX, p.a.D, copies_r}, m.relative_rows, c * kSide);
      FinishLoads(true);
      TileOf<T>::template AddProduct<false>(products, m.own, m.other, p.a.D - c * kSide);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        m.relative[RowOf(i) * kRelativeStride + part * kSide + ColumnOf(n, i)] = products[n][i];
      }
    }
  }
  __syncthreads();
}

}  // namespace attnd::cuda::attend_grad
