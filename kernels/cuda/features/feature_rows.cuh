// feature_rows of dpfp, and of long rows: a warp or a block a row. Features are computed anew in
// every pass over a row, from rows that stay in L1. Bound: bytes of x, the gradient and the result.
#pragma once

#include "kernels/cuda/element/element_call.h"
#include "kernels/cuda/features/row_threads.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/views.h"
#include "kernels/device/feature_rows.h"

namespace attnd::cuda {

struct FeatureRowsTask {
  View x, dout;
  float* out = nullptr;
  int64_t rows = 0, D = 0;
};

// A row of a view: elements `step` apart from `at` on.
struct RowView {
  const void* data = nullptr;
  int64_t at = 0, step = 0;
  DType dtype = DType::kF32;

  SIMT_FN RowView(const View& view, int64_t row) : data(view.data), dtype(view.dtype) {
    for (int i = view.shape.rank - 2; i >= 0; --i) {
      const int64_t rest = row / view.shape.dims[i];
      at += (row - rest * view.shape.dims[i]) * view.stride[i];
      row = rest;
    }
    step = view.shape.rank == 0 ? 0 : view.stride[view.shape.rank - 1];
  }
  SIMT_FN float operator[](int64_t i) const { return LoadFloat(data, dtype, at + i * step); }
};

// kDpfp: nu > 0.
template <int kThreads, bool kDpfp>
class FeatureRow {
 public:
  SIMT_FN FeatureRow(const FeatureRows& features, const FeatureRowsTask& task, int64_t row,
                     const RowThreads<kThreads>& threads)
      : f_(features),
        threads_(threads),
        x_(task.x, row),
        g_(task.dout, row),
        D_(task.D),
        width_(kDpfp ? 2 * task.D : task.D),
        blocks_(kDpfp ? features.nu : 1) {}

  // `out`: the first row of the result, and below.
  SIMT_FN void Forward(float* out, int64_t row) {
    out += row * blocks_ * width_;
    SetNorm();
    ForEach([&](int64_t j, int64_t c) {
      const float phi = Feature(j, c);
      out[j * width_ + c] = f_.norm == RowNorm::kNone ? phi : norm_ == 0 ? 0 : phi / norm_;
    });
  }

  SIMT_FN void Backward(float* out, int64_t row) {
    out += row * D_;
    SetNorm();
    if (f_.norm != RowNorm::kNone && norm_ != 0) {
      // Of quotients: features may be far from 1, and products with them leave float32.
      double along = 0;
      ForEach([&](int64_t j, int64_t c) {
        along += static_cast<double>(g_[j * width_ + c]) * (Feature(j, c) / norm_);
      });
      along_ = static_cast<float>(threads_.Sum(along));
    }
    for (int64_t i = threads_.thread(); i < D_; i += kThreads) {
      out[i] = f_.norm != RowNorm::kNone && norm_ == 0 ? 0 : Gradient(i);
    }
  }

 private:
  // Calls visit(j, c) for the features of this thread: element c of block j.
  template <class F>
  SIMT_FN void ForEach(const F& visit) const {
    for (int64_t j = 0; j < blocks_; ++j) {
      for (int64_t c = threads_.thread(); c < width_; c += kThreads) visit(j, c);
    }
  }

  // r = [relu(x), relu(-x)].
  SIMT_FN float Half(int64_t c) const {
    const float x = c < D_ ? x_[c] : 0 - x_[c - D_];
    return x < 0 ? 0 : x;
  }
  // Block j, from 0 on, turns r by j + 1.
  SIMT_FN int64_t Turn(int64_t j) const { return (j + 1) % width_; }
  SIMT_FN float Feature(int64_t j, int64_t c) const {
    if constexpr (!kDpfp) return CalledMap(f_.map, x_[c]);
    const int64_t other = c - Turn(j);
    return Half(c) * Half(other < 0 ? other + width_ : other);
  }

  SIMT_FN void SetNorm() {
    if (f_.norm == RowNorm::kNone) return;
    double sum = 0;
    ForEach([&](int64_t j, int64_t c) {
      const double phi = Feature(j, c);
      sum += f_.norm == RowNorm::kSum ? phi : phi * phi;
    });
    sum = threads_.Sum(sum);
    if (f_.norm == RowNorm::kSum) {
      norm_ = static_cast<float>(sum);
      return;
    }
    root_ = static_cast<float>(sqrt(sum + f_.eps));
    const auto floor = static_cast<float>(f_.floor), offset = static_cast<float>(f_.offset);
    norm_ = root_ + offset;
    if (root_ < floor) norm_ = floor + offset, root_ = 0;
  }

  // Of feature (j, c): with y = phi / norm, (dy - sum(dy y)) / norm for the sum,
  // (dy - phi sum(dy y) / root) / norm for the root of squares.
  SIMT_FN float FeatureGradient(int64_t j, int64_t c) const {
    const float g = g_[j * width_ + c];
    switch (f_.norm) {
      case RowNorm::kNone:
        return g;
      case RowNorm::kSum:
        return (g - along_) / norm_;
      default:
        return (root_ == 0 ? g : fmaf(-along_, Feature(j, c) / root_, g)) / norm_;
    }
  }

  // dr_c = sum_j dphi_jc r_(c-j) + dphi_j,(c+j) r_(c+j); the gradient of x flows where it is not 0.
  SIMT_FN float Gradient(int64_t i) const {
    const float x = x_[i];
    if constexpr (!kDpfp) return CalledSlope(f_.map, FeatureGradient(0, i), x);
    if (!(x > 0) && !(x < 0)) return 0;
    const int64_t c = x > 0 ? i : D_ + i;
    float before = 0, after = 0;
    for (int64_t j = 0; j < blocks_; ++j) {
      const int64_t turn = Turn(j);
      const int64_t left = c < turn ? c - turn + width_ : c - turn;
      const int64_t right = c + turn >= width_ ? c + turn - width_ : c + turn;
      before = fmaf(FeatureGradient(j, c), Half(left), before);
      after = fmaf(FeatureGradient(j, right), Half(right), after);
    }
    return x > 0 ? before + after : -(before + after);
  }

  const FeatureRows& f_;
  const RowThreads<kThreads>& threads_;
  const RowView x_, g_;
  const int64_t D_, width_, blocks_;
  float norm_ = 1, root_ = 0, along_ = 0;
};

template <int kThreads, bool kDpfp>
__global__ void __launch_bounds__(kRowBlock, 2)
    FeatureRowsKernel(const __grid_constant__ Problems<FeatureRowsTask> problems,
                      FeatureRows features, bool derivative) {
  const RowThreads<kThreads> threads;
  const Place<FeatureRowsTask> place = FindPlace(problems);
  const FeatureRowsTask& task = place.problem;
  const int64_t row = place.block * RowThreads<kThreads>::kRows + threads.row();
  if (row >= task.rows) return;
  FeatureRow<kThreads, kDpfp> of_row(features, task, row, threads);
  if (derivative) {
    of_row.Backward(task.out, row);
  } else {
    of_row.Forward(task.out, row);
  }
}

}  // namespace attnd::cuda
