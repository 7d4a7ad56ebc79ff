// Launches of random_features on the CPU: directions are packed once, then every item takes some
// rows of a head. A shared shift is known after all rows: a second pass over phi applies it.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/features/feature_item.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

namespace attnd {
namespace {

const RandomFeaturesProblem& Forward(const RandomFeaturesProblem& p) { return p; }
const RandomFeaturesProblem& Forward(const RandomFeaturesGradProblem& p) { return p.forward; }
const RandomFeaturesGradProblem* Gradient(const RandomFeaturesProblem&) { return nullptr; }
const RandomFeaturesGradProblem* Gradient(const RandomFeaturesGradProblem& p) { return &p; }

// A list of problems as items, and where they find what in one buffer.
template <class Problem>
class FeatureLaunch {
 public:
  FeatureLaunch(const Cpu& cpu, const RandomFeaturesParams& params,
                const std::vector<Problem>& problems)
      : cpu_(cpu), kernels_(FeatureKernelsOf(cpu.isa)), params_(params), problems_(problems) {
    const bool is_backward = !problems.empty() && Gradient(problems[0]) != nullptr;
    projects_ = !is_backward || NeedsProducts(params);
    returns_ = is_backward;
    for (const Problem& p : problems) Add(Forward(p));
  }

  int64_t floats() const { return scratch_at() + cpu_.threads * scratch_; }
  int64_t items() const { return items_.count(); }
  double seconds() const { return seconds_ + packing_seconds_; }

  // Packs the directions. `buffer`: floats() of them.
  void Start(Stream& stream, float* buffer) {
    buffer_ = buffer;
    cpu_.ForEach(stream, panels_.count(), packing_seconds_, [&](int64_t i, int) { Pack(i); });
  }
  FeatureItem Item(int64_t i, int thread) const {
    const RowItems::Item at = items_[i];
    const Problem& problem = problems_[at.problem];
    const RandomFeaturesProblem& p = Forward(problem);
    const Shape &s = p.x.shape, &w = p.w.shape;
    const int64_t rows = FeatureLayout::Block(w[2]), blocks = CeilDiv(s[2], rows);
    const int64_t head = at.begin / blocks, begin = at.begin % blocks * rows;
    const int64_t b = head / s[1], h = head % s[1], of_w = h / (s[1] / w[1]);
    const Places& places = places_[at.problem];
    return {.params = &params_,
            .problem = &p,
            .grad = Gradient(problem),
            .b = b,
            .h = h,
            .begin = begin,
            .end = std::min(begin + rows, s[2]),
            .by_direction = buffer_ + places.by_direction + of_w * DirectionFloats(w),
            .by_column = buffer_ + places.by_column + of_w * ColumnFloats(w),
            .row_shift = buffer_ + shared_ + places.row_shift + head * s[2],
            .scratch = buffer_ + scratch_at() + thread * scratch_};
  }
  const FeatureKernels& kernels() const { return kernels_; }

 private:
  static constexpr double kSecondsPerElement = 0.1e-9;
  struct Places {
    int64_t by_direction = 0, by_column = 0, row_shift = 0;
  };

  // Panels are at most 64 wide.
  int64_t DirectionFloats(const Shape& w) const { return projects_ ? RoundUp(w[2], 64) * w[3] : 0; }
  int64_t ColumnFloats(const Shape& w) const { return returns_ ? RoundUp(w[3], 64) * w[2] : 0; }
  int64_t DirectionPanels(const Shape& w) const {
    return projects_ ? CeilDiv(w[2], kernels_.panel) : 0;
  }
  int64_t ColumnPanels(const Shape& w) const {
    return returns_ ? CeilDiv(w[3], kernels_.panel) : 0;
  }

  int64_t Place(int64_t floats) {
    const int64_t at = shared_;
    shared_ += RoundUp(floats, 16);
    return at;
  }
  int64_t scratch_at() const { return shared_ + RoundUp(shifts_, 16); }

  // Sequences of a batch are problems with the same directions, which are packed once.
  bool PacksAnew(const View& w) const {
    if (packed_ == nullptr) return true;
    const View& last = *packed_;
    return last.data != w.data || last.shape != w.shape || last.stride != w.stride;
  }

  void Add(const RandomFeaturesProblem& p) {
    const Shape &s = p.x.shape, &w = p.w.shape;
    const FeatureLayout layout(s, w);
    const int64_t rows = s[0] * s[1] * s[2];
    items_.Add(s[0] * s[1] * CeilDiv(s[2], layout.rows), 1);
    const bool is_new = rows > 0 && PacksAnew(p.w);
    panels_.Add(is_new ? w[1] * (DirectionPanels(w) + ColumnPanels(w)) : 0, 1);
    if (is_new) {
      packed_ = &p.w;
      packed_at_ = {Place(w[1] * DirectionFloats(w)), Place(w[1] * ColumnFloats(w)), 0};
      const double packed = static_cast<double>(w[1] * w[2] * w[3]);
      packing_seconds_ += kSecondsPerElement * packed * products();
    }
    packed_at_.row_shift = shifts_;
    places_.push_back(packed_at_);
    shifts_ += params_.shares_shift && !returns_ ? rows : 0;
    scratch_ = std::max(scratch_, RoundUp(layout.floats(), 1024));
    Predict(static_cast<double>(rows), p);
  }
  int products() const { return (projects_ ? 1 : 0) + (returns_ ? 1 : 0); }

  // Products at a share of the peak, functions, and what is moved.
  void Predict(double rows, const RandomFeaturesProblem& p) {
    constexpr double kShareOfPeak = 0.95, kSecondsPerFeature = 0.4e-9;
    const Shape& w = p.w.shape;
    const double m = static_cast<double>(w[2]), D = static_cast<double>(w[3]);
    const double features = rows * static_cast<double>(FeatureCount(params_.feature, w[2]));
    const bool reads_phi = returns_ && !projects_;
    const double passes = params_.shares_shift && !returns_ ? 3 : reads_phi ? 4 : 1;
    seconds_ += products() * 2 * rows * m * D / (kShareOfPeak * cpu_.thread_flops) +
                (reads_phi ? 0 : kSecondsPerFeature * features) +
                kSecondsPerElement * passes * (features + rows * D);
  }

  void Pack(int64_t i) const {
    const RowItems::Item at = panels_[i];
    const View& view = Forward(problems_[at.problem]).w;
    const Shape& w = view.shape;
    const int64_t directions = DirectionPanels(w), each = directions + ColumnPanels(w);
    const int64_t head = at.begin / each, panel = at.begin % each;
    const bool by_direction = panel < directions;
    const Places& places = places_[at.problem];
    float* const to = buffer_ + (by_direction ? places.by_direction + head * DirectionFloats(w)
                                              : places.by_column + head * ColumnFloats(w));
    kernels_.pack(view.As<float>() + head * view.stride[1], view.stride[2], w[2], w[3],
                  by_direction, by_direction ? panel : panel - directions, to);
  }

  const Cpu& cpu_;
  const FeatureKernels kernels_;
  const RandomFeaturesParams& params_;
  const std::vector<Problem>& problems_;
  bool projects_ = false, returns_ = false;  // products with w^T, with w
  RowItems items_, panels_;
  std::vector<Places> places_;
  const View* packed_ = nullptr;  // the directions that were packed last
  Places packed_at_;
  // Floats of all packed directions; then those of row_shift, in order; then a thread's scratch.
  int64_t shared_ = 0, shifts_ = 0, scratch_ = 0;
  double seconds_ = 0, packing_seconds_ = 0;
  float* buffer_ = nullptr;
};

// Of items in the order of their heads: s of each head is the largest of its items.
void WriteSharedShifts(const RandomFeaturesArgs& args, const std::vector<float>& largest) {
  size_t item = 0;
  for (const RandomFeaturesProblem& p : args.problems) {
    const Shape& s = p.x.shape;
    const int64_t blocks = CeilDiv(s[2], FeatureLayout::Block(p.w.shape[2]));
    for (int64_t head = 0; head < s[0] * s[1]; ++head) {
      float all = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < blocks; ++i, ++item) {
        if (!(largest[item] <= all)) all = std::isnan(all) ? all : largest[item];
      }
      p.shift.As<float>()[head / s[1] * p.shift.stride[0] + head % s[1] * p.shift.stride[1]] = all;
    }
  }
}

// Calls run(launch) once the directions are packed, unless the stream is dry.
template <class Problem, class F>
DeviceStatus Launched(CpuDevice& device, Stream& stream, const RandomFeaturesParams& params,
                      const std::vector<Problem>& problems, const F& run) {
  const Cpu& cpu = device.cpu();
  FeatureLaunch<Problem> launch(cpu, params, problems);
  const auto buffer = Take(stream, launch.floats() * static_cast<int64_t>(sizeof(float)));
  if (buffer == nullptr) return NoMemory(stream);
  const double seconds = cpu.ParallelSeconds(launch.seconds(), launch.items());
  if (Predicted(stream, Cpu::kLaunchSeconds + seconds)) return DeviceStatus();
  launch.Start(stream, static_cast<float*>(buffer->data()));
  run(launch);
  return DeviceStatus();
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const RandomFeaturesArgs& args) {
  const Cpu& cpu = device.cpu();
  return Launched(device, stream, args.params, args.problems, [&](const auto& launch) {
    std::vector<float> largest(static_cast<size_t>(launch.items()));
    cpu.ForEach(stream, launch.items(), launch.seconds(), [&](int64_t i, int thread) {
      largest[i] = launch.kernels().forward(launch.Item(i, thread));
    });
    if (!args.params.shares_shift || stream.stopped()) return;
    WriteSharedShifts(args, largest);
    cpu.ForEach(stream, launch.items(), launch.seconds(),
                [&](int64_t i, int thread) { launch.kernels().share(launch.Item(i, thread)); });
  });
}

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const RandomFeaturesGradArgs& args) {
  return Launched(device, stream, args.params, args.problems, [&](const auto& launch) {
    device.cpu().ForEach(stream, launch.items(), launch.seconds(), [&](int64_t i, int thread) {
      launch.kernels().backward(launch.Item(i, thread));
    });
  });
}

}  // namespace attnd
