// random_features between its products: a warp or a block a row. u = alpha x w^T lies where the
// features of it will be; a thread reads what it overwrites. Bound: bytes of the features.
#pragma once

#include "kernels/cuda/element/element_call.h"
#include "kernels/cuda/features/row_threads.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/views.h"
#include "kernels/device/random_features.h"

namespace attnd::cuda {

// Whether a gradient needs u: others follow from phi, unless eps hides what is far below it.
__host__ __device__ inline bool NeedsProducts(const RandomFeaturesParams& o) {
  const bool is_other_map = o.feature == RandomFeature::kMapped && o.map != ElementOp::kRelu;
  return is_other_map || o.eps != 0;
}

// Views [B,H,N,..] whose last stride is 1.
struct RandomFeaturesTask {
  View x, phi, shift;
  View dphi;                   // of a gradient
  float* row_shift = nullptr;  // [B,H,N], where rows share one
  float* du = nullptr;         // [B,H,N,m]: u becomes its gradient
  float* dx = nullptr;         // [B,H,N,D]: the part of it that is along x; null: none
  int64_t rows = 0, m = 0, D = 0;
};

struct HeadRow {
  int64_t b, h, n;

  SIMT_FN HeadRow(const View& view, int64_t row) {
    const int64_t head = row / view.shape.dims[2];
    n = row - head * view.shape.dims[2];
    b = head / view.shape.dims[1];
    h = head - b * view.shape.dims[1];
  }
  SIMT_FN int64_t In(const View& view) const {
    return b * view.stride[0] + h * view.stride[1] + n * view.stride[2];
  }
};

template <int kThreads>
class RandomRow {
 public:
  SIMT_FN RandomRow(const RandomFeaturesParams& params, const RandomFeaturesTask& task, int64_t row,
                    const RowThreads<kThreads>& threads)
      : o_(params),
        task_(task),
        threads_(threads),
        row_(row),
        m_(task.m),
        alpha_(static_cast<float>(params.alpha)),
        factor_(static_cast<float>(params.factor)),
        term_(static_cast<float>(params.factor) * static_cast<float>(params.eps)),
        at_(task.x, row) {}

  // s of the row alone; of kCosSin without u.
  SIMT_FN float OwnShift() const {
    if (o_.feature == RandomFeature::kCosSin) return HalfSquare();
    const float* const u = static_cast<float*>(task_.phi.data) + at_.In(task_.phi);
    float most = -INFINITY;
    for (int64_t i = threads_.thread(); i < m_; i += kThreads) {
      const float size = o_.feature == RandomFeature::kCosh ? fabsf(u[i]) : u[i];
      most = static_cast<float>(RowThreads<kThreads>::LargerOf(most, size));
    }
    return threads_.Largest(most);
  }

  // s of the row alone: the result, or for the one that its head shares.
  SIMT_FN void FindShift() const {
    const float s = OwnShift();
    if (threads_.thread() != 0) return;
    if (o_.shares_shift) {
      task_.row_shift[row_] = s;
    } else {
      static_cast<float*>(task_.shift.data)[at_.In(task_.shift)] = s;
    }
  }

  // From u, and s where rows share it. Not of features that are finished with their products.
  SIMT_FN void Forward() const {
    float* const phi = static_cast<float*>(task_.phi.data) + at_.In(task_.phi);
    float s = 0;
    if (o_.shares_shift) {
      s = Shift();
    } else {
      s = OwnShift();
      if (threads_.thread() == 0) {
        static_cast<float*>(task_.shift.data)[at_.In(task_.shift)] = s;
      }
    }
    const float h = HalfSquare();
    if (o_.feature == RandomFeature::kCosSin) {
      const float size = factor_ * expf(h - s);
      ForEach([&](int64_t i) {
        float sine, cosine;
        sincosf(phi[i], &sine, &cosine);
        phi[i] = size * cosine;
        phi[m_ + i] = size * sine;
      });
      return;
    }
    ForEach([&](int64_t i) {
      const float u = phi[i];
      phi[i] = fmaf(Power(u, s, h), factor_, term_);
      if (o_.feature == RandomFeature::kCosh) phi[m_ + i] = fmaf(Power(-u, s, h), factor_, term_);
    });
  }

  // From dphi to the gradient of u, and of x where it does not pass through u.
  SIMT_FN void Backward() const {
    const int64_t phi_at = at_.In(task_.phi), dphi_at = at_.In(task_.dphi);
    const float* const phi = static_cast<float*>(task_.phi.data) + phi_at;
    float* const u = task_.du + row_ * m_;
    const auto dphi = [&](int64_t i) {
      return LoadFloat(task_.dphi.data, task_.dphi.dtype, dphi_at + i);
    };
    const bool has_powers = o_.feature == RandomFeature::kExp || o_.feature == RandomFeature::kCosh;
    const bool needs_products = NeedsProducts(o_);
    float s = 0, h = 0;
    if (has_powers && needs_products) s = Shift(), h = HalfSquare();
    double sum = 0;  // of dphi phi, without eps
    ForEach([&](int64_t i) {
      if (has_powers) {
        float flow = dphi(i) * (needs_products ? factor_ * Power(u[i], s, h) : phi[i]);
        sum += flow;
        if (o_.feature == RandomFeature::kCosh) {
          const float back =
              dphi(m_ + i) * (needs_products ? factor_ * Power(-u[i], s, h) : phi[m_ + i]);
          sum += back;
          flow -= back;
        }
        u[i] = flow;
      } else if (o_.feature == RandomFeature::kMapped) {
        if (needs_products) {
          u[i] = factor_ * CalledSlope(o_.map, dphi(i), u[i]);
        } else {
          u[i] = phi[i] > 0 ? factor_ * dphi(i) : 0;
        }
      } else {
        const bool is_cos_sin = o_.feature == RandomFeature::kCosSin;
        const int64_t sine = is_cos_sin ? m_ + i : i, cosine = is_cos_sin ? i : m_ + i;
        const float ds = dphi(sine), dc = dphi(cosine);
        u[i] = ds * phi[cosine] - dc * phi[sine];
        sum += fmaf(ds, phi[sine], dc * phi[cosine]);
      }
    });
    if (task_.dx == nullptr) return;
    // Features have a factor e^h, or e^-h.
    const double total = threads_.Sum(sum);
    const float along =
        alpha_ * static_cast<float>(o_.feature == RandomFeature::kCosSin ? total : -total);
    for (int64_t d = threads_.thread(); d < task_.D; d += kThreads) {
      task_.dx[row_ * task_.D + d] = along * X(d);
    }
  }

 private:
  template <class F>
  SIMT_FN void ForEach(const F& visit) const {
    for (int64_t i = threads_.thread(); i < m_; i += kThreads) visit(i);
  }

  SIMT_FN float X(int64_t d) const {
    return alpha_ * LoadFloat(task_.x.data, task_.x.dtype, at_.In(task_.x) + d);
  }
  SIMT_FN float HalfSquare() const {
    double sum = 0;
    for (int64_t d = threads_.thread(); d < task_.D; d += kThreads) {
      const double x = X(d);
      sum += x * x;
    }
    return static_cast<float>(threads_.Sum(sum) / 2);
  }
  // s that was written before.
  SIMT_FN float Shift() const {
    const View& shift = task_.shift;
    const int64_t n = o_.shares_shift ? 0 : at_.n;
    return static_cast<const float*>(
        shift.data)[at_.b * shift.stride[0] + at_.h * shift.stride[1] + n * shift.stride[2]];
  }
  SIMT_FN static float Power(float u, float s, float h) { return expf((u - s) - h); }

  const RandomFeaturesParams& o_;
  const RandomFeaturesTask& task_;
  const RowThreads<kThreads>& threads_;
  const int64_t row_, m_;
  const float alpha_, factor_, term_;
  const HeadRow at_;
};

enum class RandomStep : uint8_t { kShift, kForward, kBackward };

template <int kThreads>
__global__ void __launch_bounds__(kRowBlock)
    RandomFeaturesKernel(const __grid_constant__ Problems<RandomFeaturesTask> problems,
                         RandomFeaturesParams params, RandomStep step) {
  const RowThreads<kThreads> threads;
  const Place<RandomFeaturesTask> place = FindPlace(problems);
  const RandomFeaturesTask& task = place.problem;
  const int64_t row = place.block * RowThreads<kThreads>::kRows + threads.row();
  if (row >= task.rows) return;
  const RandomRow<kThreads> of_row(params, task, row, threads);
  switch (step) {
    case RandomStep::kShift:
      return of_row.FindShift();
    case RandomStep::kForward:
      return of_row.Forward();
    case RandomStep::kBackward:
      return of_row.Backward();
  }
}

// s that the rows of a head share, a block a head; -inf of no row.
static __global__ void __launch_bounds__(kRowBlock)
    SharedShiftKernel(const __grid_constant__ Problems<RandomFeaturesTask> problems) {
  const RowThreads<kRowBlock> threads;
  const Place<RandomFeaturesTask> place = FindPlace(problems);
  const RandomFeaturesTask& task = place.problem;
  const int64_t H = task.x.shape.dims[1], N = task.x.shape.dims[2];
  const float* const rows = task.row_shift + place.block * N;
  float most = -INFINITY;
  // One block has no other loads under way.
#pragma unroll 8
  for (int64_t n = threads.thread(); n < N; n += kRowBlock) {
    most = static_cast<float>(RowThreads<kRowBlock>::LargerOf(most, rows[n]));
  }
  most = threads.Largest(most);
  if (threads.thread() != 0) return;
  const int64_t b = place.block / H, h = place.block - b * H;
  static_cast<float*>(task.shift.data)[b * task.shift.stride[0] + h * task.shift.stride[1]] = most;
}

}  // namespace attnd::cuda
