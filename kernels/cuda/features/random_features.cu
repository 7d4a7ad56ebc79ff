// RandomFeatures on a CUDA device: products with the directions by matmul, the rest row by row, or
// with the products where no s of a row is needed.
#include "kernels/cuda/features/random_features.cuh"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/features/power_rows.cuh"
#include "kernels/cuda/matmul/matmul_launch.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// [B,H,N,d] as [B,Hw,H / Hw,N,d]: heads that share directions are a dimension of their own.
View ByDirections(const View& view, int64_t Hw) {
  View out = view;
  const int64_t group = view.shape[1] / Hw;
  out.shape = {view.shape[0], Hw, group, view.shape[2], view.shape[3]};
  out.stride = {view.stride[0], view.stride[1] * group, view.stride[1], view.stride[2],
                view.stride[3]};
  return out;
}

// w [1,Hw,m,D] as [1,Hw,1,m,D], or transposed.
View Directions(const View& w, bool is_transposed) {
  View out = w;
  out.shape = {1, w.shape[1], 1, w.shape[2], w.shape[3]};
  out.stride = {0, w.stride[1], 0, w.stride[2], w.stride[3]};
  if (is_transposed) {
    std::swap(out.shape.dims[3], out.shape.dims[4]);
    std::swap(out.stride[3], out.stride[4]);
  }
  return out;
}

// Dense [B,H,N,d] of float32.
View DenseRows(float* data, const Shape& rows, int64_t d) {
  return DenseView(data, DType::kF32, {rows[0], rows[1], rows[2], d});
}

class RandomLaunch {
 public:
  RandomLaunch(CudaDevice& device, Stream& stream, const RandomFeaturesParams& params)
      : device_(device), stream_(stream), params_(params) {}

  void Add(const RandomFeaturesTask& task) {
    const bool is_long = task.m > kLongRow;
    Rows& rows = is_long ? long_ : short_;
    rows.list.Add(task, is_long ? task.rows : DivideUp(task.rows, RowThreads<simt::kWarp>::kRows));
    const double elements = static_cast<double>(task.rows * (task.m + task.D));
    rows.elements += elements;
    AddHeads(task);
  }
  // Its shifts are found elsewhere.
  void AddHeads(const RandomFeaturesTask& task) {
    const Shape& s = task.x.shape;
    heads_.Add(task, s[0] * s[1]);
    all_rows_ += static_cast<double>(task.rows);
    most_rows_ = std::max(most_rows_, s[2]);
  }

  // A pass over all rows that moves so many bytes an element of u and x.
  DeviceStatus Run(RandomStep step, double bytes) {
    if (DeviceStatus status = RunRows<simt::kWarp>(step, bytes, short_); !status.ok()) {
      return status;
    }
    return RunRows<kRowBlock>(step, bytes, long_);
  }
  DeviceStatus ShareShifts() {
    // A thread waits for eight rows at a time.
    constexpr double kRowSeconds = 1e-7;
    const double of_block = kRowSeconds * static_cast<double>(DivideUp(most_rows_, kRowBlock));
    const LaunchShape shape = {
        .threads = kRowBlock,
        .shared_bytes = kRowSharedBytes,
        .seconds = std::max(CudaOf(device_).Seconds(0, 4 * all_rows_), of_block)};
    return LaunchOver(device_, stream_, shape, SharedShiftKernel, heads_);
  }

 private:
  struct Rows {
    ProblemList<RandomFeaturesTask> list;
    double elements = 0;
  };

  template <int kThreads>
  DeviceStatus RunRows(RandomStep step, double bytes, Rows& rows) {
    constexpr double kFlops = 40;  // of a feature
    const LaunchShape shape = {
        .threads = kRowBlock,
        .shared_bytes = kThreads > simt::kWarp ? kRowSharedBytes : 0,
        .seconds = CudaOf(device_).Seconds(kFlops * rows.elements, bytes * rows.elements)};
    return LaunchOver(device_, stream_, shape, RandomFeaturesKernel<kThreads>, rows.list, params_,
                      step);
  }

  CudaDevice& device_;
  Stream& stream_;
  const RandomFeaturesParams& params_;
  Rows short_, long_;
  ProblemList<RandomFeaturesTask> heads_;
  double all_rows_ = 0;
  int64_t most_rows_ = 0;  // of a head
};

// Rows whose threads hold them.
class PowerLaunch {
 public:
  PowerLaunch(CudaDevice& device, Stream& stream, const RandomFeaturesParams& params)
      : device_(device), stream_(stream), params_(params) {}

  // False where rows are too long.
  bool Add(const RandomFeaturesTask& task) {
    const View back = Columns(task.phi, params_.feature == RandomFeature::kCosh ? task.m : 0);
    View rows = task.shift, all = task.shift;
    all.shape.dims[2] = task.x.shape[2];
    if (params_.shares_shift) {
      const Shape& s = task.x.shape;
      rows = DenseView(task.row_shift, DType::kF32, {s[0], s[1], s[2], 1});
      all.stride[2] = 0;
    }
    const auto lines_of = [&](const View& shift) {
      View u = task.phi;
      u.shape.dims[3] = task.m;
      return LinesOf({u, task.x, shift, back}, 3, Lines::kDenseChunk, /*dense_only=*/true);
    };
    const std::vector<Lines> features = lines_of(all);
    const auto is_short = [](const Lines& l) { return l.kind() == LineKind::kShortRows; };
    if (!std::ranges::all_of(features, is_short)) return false;
    for (const Lines& l : features) all_.Add({l, task.D}, l.chunk_blocks());
    if (params_.shares_shift) {
      for (const Lines& l : lines_of(rows)) rows_.Add({l, task.D}, l.chunk_blocks());
    }
    elements_ += static_cast<double>(task.rows * (task.m + task.D));
    return true;
  }
  DeviceStatus Run(PowerStep step, double bytes) {
    constexpr double kFlops = 30;  // of a feature
    const LaunchShape shape = {
        .threads = Lines::kThreads,
        .shared_bytes = kPowerShared,
        .seconds = CudaOf(device_).Seconds(kFlops * elements_, bytes * elements_)};
    ProblemList<PowerRows>& list = step == PowerStep::kFind ? rows_ : all_;
    return LaunchOver(device_, stream_, shape, PowerRowsKernel, list, params_, step);
  }

 private:
  // From column `first` on.
  static View Columns(View view, int64_t first) {
    if (view.data != nullptr) view.data = view.As<float>() + first;
    return view;
  }

  CudaDevice& device_;
  Stream& stream_;
  const RandomFeaturesParams& params_;
  ProblemList<PowerRows> all_, rows_;  // with the s that features use, and with those of rows
  double elements_ = 0;
};

RandomFeaturesTask TaskOf(const RandomFeaturesProblem& p) {
  const Shape& s = p.x.shape;
  return {.x = p.x,
          .phi = p.phi,
          .shift = p.shift,
          .rows = s[0] * s[1] * s[2],
          .m = p.w.shape[2],
          .D = s[3]};
}

// Whether features need u of all directions, or s of all rows.
bool FinishesRows(const RandomFeaturesParams& o) {
  return HasShift(o.feature) && (o.feature != RandomFeature::kCosSin || o.shares_shift);
}

MatMulFinish FinishOf(const RandomFeaturesParams& o) {
  MatMulFinish finish = {.alpha = static_cast<float>(o.alpha)};
  if (FinishesRows(o)) return finish;
  finish.scale = static_cast<float>(o.factor);
  if (o.feature == RandomFeature::kMapped) {
    finish.term = finish.scale * static_cast<float>(o.eps);
    finish.activates = true;
    finish.activation = o.map;
  } else {
    finish.waves = o.feature == RandomFeature::kCosSin ? MatMulFinish::Waves::kCosSin
                                                       : MatMulFinish::Waves::kSinCos;
  }
  return finish;
}

// Scratch floats of the tasks of a list, one after another.
class Floats {
 public:
  explicit Floats(Stream& stream) : stream_(stream) {}
  // `shares`: ShareOf<float> of each task's floats.
  bool Allocate(int64_t shares) {
    if (shares == 0) return true;
    buffer_ = TakeShared(stream_, shares);
    if (buffer_ != nullptr && !stream_.is_dry()) next_ = static_cast<float*>(buffer_->data());
    return buffer_ != nullptr;
  }
  // On a dry stream null.
  float* Next(int64_t count) {
    if (stream_.is_dry()) return nullptr;
    float* const at = next_;
    next_ += count;
    return at;
  }

 private:
  Stream& stream_;
  std::shared_ptr<Buffer> buffer_;
  float* next_ = nullptr;
};

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const RandomFeaturesArgs& args) {
  const RandomFeaturesParams& o = args.params;
  const bool shares = o.shares_shift && HasShift(o.feature);
  int64_t shift_bytes = 0;
  std::vector<MatMulProblem> products;
  for (const RandomFeaturesProblem& p : args.problems) {
    const Shape& s = p.x.shape;
    shift_bytes += ShareOf<float>(s[0] * s[1] * s[2]);
    View u = p.phi;
    u.shape.dims[3] = p.w.shape[2];
    const int64_t Hw = p.w.shape[1];
    products.push_back({.a = ByDirections(p.x, Hw),
                        .b = Directions(p.w, /*is_transposed=*/true),
                        .out = ByDirections(u, Hw)});
  }
  Floats row_shifts(stream);
  if (shares && !row_shifts.Allocate(shift_bytes)) return NoMemory(stream);
  RandomLaunch launch(device, stream, o);
  PowerLaunch powers(device, stream, o);
  const bool has_powers = o.feature == RandomFeature::kExp || o.feature == RandomFeature::kCosh;
  for (const RandomFeaturesProblem& p : args.problems) {
    RandomFeaturesTask task = TaskOf(p);
    if (shares) task.row_shift = row_shifts.Next(task.rows);
    if (has_powers && powers.Add(task)) {
      launch.AddHeads(task);
    } else {
      launch.Add(task);
    }
  }
  if (DeviceStatus status = LaunchMatMul(device, stream, products, FinishOf(o)); !status.ok()) {
    return status;
  }
  if (!FinishesRows(o)) {
    return HasShift(o.feature) ? launch.Run(RandomStep::kShift, 4) : DeviceStatus();
  }
  if (shares) {
    if (DeviceStatus status = launch.Run(RandomStep::kShift, 4); !status.ok()) return status;
    if (DeviceStatus status = powers.Run(PowerStep::kFind, 4); !status.ok()) return status;
    if (DeviceStatus status = launch.ShareShifts(); !status.ok()) return status;
  }
  const double halves = static_cast<double>(FeatureCount(o.feature, 1));
  const double bytes = 4 + 4 * halves;
  DeviceStatus status = powers.Run(shares ? PowerStep::kGiven : PowerStep::kOwn, bytes);
  return status.ok() ? launch.Run(RandomStep::kForward, bytes) : status;
}

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const RandomFeaturesGradArgs& args) {
  const RandomFeaturesParams& o = args.params;
  const bool has_shift = HasShift(o.feature);
  int64_t bytes = 0;
  for (const RandomFeaturesGradProblem& p : args.problems) {
    const RandomFeaturesTask task = TaskOf(p.forward);
    bytes += ShareOf<float>(task.rows * (task.m + (has_shift ? task.D : 0)));
  }
  Floats scratch(stream);
  if (!scratch.Allocate(bytes)) return NoMemory(stream);
  RandomLaunch launch(device, stream, o);
  MatMulArgs products{.alpha = o.alpha}, back{.alpha = o.alpha};
  for (const RandomFeaturesGradProblem& p : args.problems) {
    RandomFeaturesTask task = TaskOf(p.forward);
    const View& w = p.forward.w;
    task.dphi = p.dphi;
    task.du = scratch.Next(task.rows * task.m);
    if (has_shift) task.dx = scratch.Next(task.rows * task.D);
    launch.Add(task);
    const int64_t Hw = w.shape[1];
    const View du = ByDirections(DenseRows(task.du, p.forward.x.shape, task.m), Hw);
    products.problems.push_back({.a = ByDirections(p.forward.x, Hw),
                                 .b = Directions(w, /*is_transposed=*/true),
                                 .out = du});
    back.problems.push_back(
        {.a = du, .b = Directions(w, /*is_transposed=*/false), .out = ByDirections(p.dx, Hw)});
    if (has_shift) {
      back.problems.back().bias = ByDirections(DenseRows(task.dx, p.forward.x.shape, task.D), Hw);
    }
  }
  if (NeedsProducts(o)) {
    if (DeviceStatus status = RunOnCuda(device, stream, products); !status.ok()) return status;
  }
  const double halves = static_cast<double>(FeatureCount(o.feature, 1));
  if (DeviceStatus status = launch.Run(RandomStep::kBackward, 4 + 8 * halves); !status.ok()) {
    return status;
  }
  return RunOnCuda(device, stream, back);
}

}  // namespace attnd::cuda
