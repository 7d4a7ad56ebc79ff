#include "kernels/engine/self_test_sizes.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/engine/random_array.h"

namespace attnd {
namespace {

RandomArray Floats(const Shape& shape) {
  return RandomArray(DType::kF32, shape, static_cast<unsigned>(shape.size()));
}

class Launcher {
 public:
  Launcher(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  // Unless one before has failed.
  void Run(Launch launch) {
    if (status_.ok()) status_ = device_.Run(stream_, std::move(launch));
  }
  DeviceStatus status() const { return status_; }

 private:
  Device& device_;
  Stream& stream_;
  DeviceStatus status_;
};

// All along one axis of x.
void LaunchLines(const Shape& shape, int axis, Launcher* launcher) {
  const RandomArray x = Floats(shape), out = Floats(shape);
  Shape one = shape;
  one.dims[static_cast<size_t>(axis)] = 1;
  const RandomArray sums = Floats(one);
  launcher->Run(ReduceArgs{.axis = axis, .problems = {{.x = x.view, .out = sums.view}}});
  launcher->Run(SoftmaxArgs{.axis = axis, .problems = {{.x = x.view, .out = out.view}}});
  for (const CumulativeOp op : {CumulativeOp::kSum, CumulativeOp::kMax, CumulativeOp::kLogSumExp}) {
    launcher->Run(
        CumulativeArgs{.op = op, .axis = axis, .problems = {{.x = x.view, .out = out.view}}});
  }
}

void LaunchLayerNorm(const Shape& shape, Launcher* launcher) {
  const RandomArray x = Floats(shape), y = Floats(shape), dx = Floats(shape),
                    rstd = Floats({shape[0], 1});
  launcher->Run(LayerNormArgs{.problems = {{.x = x.view, .y = y.view, .rstd = rstd.view}}});
  launcher->Run(LayerNormGradArgs{
      .problems = {{.y = y.view, .rstd = rstd.view, .dy = x.view, .dx = dx.view}}});
}

void LaunchFeatureRows(int64_t D, const FeatureRows& features, Launcher* launcher) {
  const RandomArray x = Floats({3, D}), out = Floats({3, features.Features(D)});
  launcher->Run(
      FeatureRowsArgs{.features = features, .problems = {{.x = x.view, .out = out.view}}});
}

void LaunchRandomFeatures(int64_t m, Launcher* launcher) {
  const RandomArray x = Floats({1, 2, 3, 8}), w = Floats({1, 1, m, 8}), phi = Floats({1, 2, 3, m}),
                    shift = Floats({1, 2, 3, 1});
  launcher->Run(RandomFeaturesArgs{
      .params = {.alpha = 0.5},
      .problems = {{.x = x.view, .w = w.view, .phi = phi.view, .shift = shift.view}}});
}

void LaunchProducts(DType dtype, int64_t count, int64_t M, int64_t N, int64_t K,
                    Launcher* launcher) {
  const RandomArray a(dtype, {count, M, K}, 1), b(dtype, {count, K, N}, 2),
      out(dtype, {count, M, N}, 3);
  launcher->Run(MatMulArgs{.problems = {{.a = a.view, .b = b.view, .out = out.view}}});
}

void LaunchTransform(const Shape& shape, Launcher* launcher) {
  const RandomArray x = Floats(shape), out = Floats(shape);
  launcher->Run(FftArgs{.problems = {{.x = x.view, .out = out.view}}});
}

// The first M of N keys.
void LaunchSort(int64_t N, int64_t M, Launcher* launcher) {
  const RandomArray x = Floats({2, N});
  std::vector<int32_t> order(static_cast<size_t>(2 * M));
  launcher->Run(
      SortArgs{.problems = {{.x = x.view, .order = DenseView(order.data(), DType::kI32, {2, M})}}});
}

// Rows of several matrices to one.
void LaunchScatter(Launcher* launcher) {
  const RandomArray x = Floats({2, 7, 4}), out = Floats({1, 9, 4});
  std::vector<int32_t> index = {0, 3, 3, -1, 8, 2, 0, 8, 8, 1, 0, -1, 5, 3};
  const View rows = DenseView(index.data(), DType::kI32, {2, 7});
  launcher->Run(ScatterRowsArgs{.problems = {{.x = x.view, .index = rows, .out = out.view}}});
}

// A row that takes more of x than one launch adds.
void LaunchLongScatter(Launcher* launcher) {
  constexpr int64_t kRows = 70'001;
  const RandomArray x = Floats({1, kRows, 1}), out = Floats({1, 2, 1});
  std::vector<int32_t> index(kRows, 1);
  const View rows = DenseView(index.data(), DType::kI32, {1, kRows});
  launcher->Run(ScatterRowsArgs{.problems = {{.x = x.view, .index = rows, .out = out.view}}});
}

// The gradient of values alone, as the mass of columns has it, by any out and lse.
void LaunchGradOfValues(DType dtype, double softcap, Launcher* launcher) {
  constexpr int64_t kN = 70, kTiles = 4;
  const auto rows = [&](unsigned seed) { return RandomArray(dtype, {1, 2, kN, 40}, seed); };
  const RandomArray q = rows(1), k = rows(2), v = rows(3), out = rows(4), dout = rows(5),
                    dv = rows(6), lse = Floats({1, 2, kN});
  const AttendSeq seq{.nq = kN, .nk = kN, .visible_pairs = kN * kN, .visible_tiles = kTiles};
  AttendGradArgs args{.params = {.scale = 0.15, .softcap = softcap}};
  args.problems.push_back(
      {.forward =
           {.q = q.view, .k = k.view, .v = v.view, .out = out.view, .lse = lse.view, .seqs = {seq}},
       .dout = dout.view,
       .dv = dv.view});
  launcher->Run(std::move(args));
}

}  // namespace

DeviceStatus LaunchOtherSizes(Device& device, Stream& stream) {
  Launcher launcher(device, stream);
  // What a block holds of a row is 8192 elements, of columns 256 rows; above half of a row's a
  // thread holds more.
  constexpr int64_t kLong = 5000, kCut = 8200;
  for (const int64_t n : {kLong, kCut}) {
    LaunchLines({3, n}, /*axis=*/1, &launcher);
    LaunchLayerNorm({3, n}, &launcher);
  }
  LaunchLines({3, 70}, /*axis=*/1, &launcher);
  LaunchLines({261, 40}, /*axis=*/0, &launcher);
  LaunchFeatureRows(kLong, {.map = ElementOp::kExp, .norm = RowNorm::kSum}, &launcher);
  LaunchFeatureRows(1100, {.nu = 1, .norm = RowNorm::kL2, .eps = 1e-6}, &launcher);
  LaunchRandomFeatures(4200, &launcher);
  // Two passes a row, and a convolution.
  LaunchTransform({3, 5000}, &launcher);
  LaunchTransform({3, 106}, &launcher);
  LaunchSort(kLong, kLong, &launcher);
  LaunchSort(kLong, 5, &launcher);
  LaunchScatter(&launcher);
  LaunchLongScatter(&launcher);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    // Large tiles, of which there must be many; small ones; a sum in chunks.
    LaunchProducts(dtype, 96, 70, 66, 24, &launcher);
    LaunchProducts(dtype, 2, 70, 20, 24, &launcher);
    LaunchProducts(dtype, 1, 20, 12, 2200, &launcher);
    for (const double softcap : {0.0, 5.0}) LaunchGradOfValues(dtype, softcap, &launcher);
  }
  return launcher.status();
}

}  // namespace attnd
