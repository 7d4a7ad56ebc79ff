// Features on the CUDA device against plain loops: maps, dpfp, norms, short rows and long ones; and
// in all thread orders and lists.
#include <gtest/gtest.h>

#include <cmath>
#include <list>

#include "tests/cuda/lists.h"

namespace attnd::testing {
namespace {

struct FeatureArrays {
  TestArray x, dout, out;
  FeatureRowsProblem problem;

  FeatureArrays(const FeatureRowsArgs& args, unsigned seed, DType dtype, const Shape& shape,
                Memory memory, double low, double high)
      : x(TestArray::Random(seed, dtype, shape, memory, low, high)) {
    Shape features = shape;
    features.dims[shape.rank - 1] = args.features.Features(shape[shape.rank - 1]);
    out = TestArray(DType::kF32, args.derivative ? shape : features);
    if (args.derivative) dout = TestArray::Random(seed + 100, dtype, features, memory);
    problem = {x.view(), dout.view(), out.view()};
  }
};

// Rows of all lengths in a list, against plain loops.
void ExpectFeatures(FeatureRowsArgs args, double low, double high, double slack) {
  Device& device = CpuOf("cuda", 1);
  for (bool derivative : {false, true}) {
    SCOPED_TRACE(derivative);
    args.derivative = derivative;
    args.problems.clear();
    std::list<FeatureArrays> list;
    std::vector<TestArray*> outs;
    const auto add = [&](DType dtype, const Shape& shape, Memory memory = Memory::kDense) {
      list.emplace_back(args, static_cast<unsigned>(list.size()), dtype, shape, memory, low, high);
      args.problems.push_back(list.back().problem);
      outs.push_back(&list.back().out);
    };
    add(DType::kF32, {2, 3, 5, 9});
    add(DType::kF32, {67, 11});
    add(DType::kBF16, {3, 64}, Memory::kPitched);
    add(DType::kF16, {2, 7, 33}, Memory::kTransposed);
    // A block holds the first of these rows, and passes over the second.
    add(DType::kF32, {3, 2500});
    add(DType::kF32, {2, 4100});
    add(DType::kF32, {0, 4});
    ExpectOneResult(args, outs);
    RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
    std::vector<PlainArray> results;
    for (TestArray* out : outs) results.push_back(out->Read());
    PlainRun(args);
    for (size_t i = 0; i < outs.size(); ++i) {
      SCOPED_TRACE(i);
      double largest = 0;
      const PlainArray truth = outs[i]->Read();
      for (double x : truth.values) largest = std::max(largest, std::fabs(x));
      ExpectNear(results[i], truth, slack, slack * largest);
      EXPECT_TRUE(outs[i]->GuardsIntact());
    }
  }
}

TEST(FeatureRowsCuda, MapsAndNorms) {
  for (RowNorm norm : {RowNorm::kNone, RowNorm::kSum, RowNorm::kL2}) {
    for (int64_t nu : {0, 1, 3}) {
      SCOPED_TRACE(static_cast<int>(norm) * 10 + nu);
      const double low = nu > 0 ? -1 : 0.5;
      ExpectFeatures({.features = {.map = ElementOp::kSilu, .nu = nu, .norm = norm, .eps = 1e-2},
                      .problems = {}},
                     low, 1.5, 1e-5);
    }
  }
  for (ElementOp map : {ElementOp::kCopy, ElementOp::kRelu, ElementOp::kEluPlusOne}) {
    ExpectFeatures(
        {.features = {.map = map, .norm = RowNorm::kL2, .floor = 3, .offset = 0.5}, .problems = {}},
        -2, 2, 1e-5);
  }
}

// Squares beyond float32, and below it.
TEST(FeatureRowsCuda, FarNorms) {
  for (double size : {1e25, 1e-25}) {
    ExpectFeatures({.features = {.norm = RowNorm::kL2}, .problems = {}}, size, 2 * size, 1e-5);
  }
}

TEST(FeatureRowsCuda, RowsOfZerosGiveZeros) {
  for (bool derivative : {false, true}) {
    FeatureRowsArgs args = {
        .features = {.nu = 2, .norm = RowNorm::kSum}, .derivative = derivative, .problems = {}};
    FeatureArrays arrays(args, 1, DType::kF32, {3, 8}, Memory::kDense, 0, 1);
    arrays.x.Write(PlainArray({3, 8}));
    args.problems = {arrays.problem};
    ExpectOneResult(args, {&arrays.out});
    for (double x : arrays.out.Read().values) EXPECT_EQ(x, 0);
  }
}

TEST(RandomFeaturesCuda, OneResult) {
  for (int kind = 0; kind < 5; ++kind) {
    for (bool shares : {false, true}) {
      SCOPED_TRACE(kind * 10 + (shares ? 1 : 0));
      const RandomFeaturesParams params = {.feature = static_cast<RandomFeature>(kind),
                                           .alpha = 0.5,
                                           .eps = kind < 2 ? 0.01 : 0,
                                           .shares_shift = shares};
      RandomFeaturesArgs forward = {params, {}};
      RandomFeaturesGradArgs backward = {params, {}};
      std::list<TestArray> arrays;
      std::vector<TestArray*> features, gradients;
      const auto add = [&](TestArray array) {
        arrays.push_back(std::move(array));
        return &arrays.back();
      };
      // Heads that share directions, rows that a block holds, longer ones, no rows.
      for (Shape shape :
           {Shape{2, 4, 37, 24}, Shape{1, 2, 3, 6}, Shape{1, 2, 2, 5}, Shape{1, 1, 0, 4}}) {
        const int64_t m = shape[3] == 5   ? 4200
                          : shape[3] == 6 ? 2100
                                          : 33,
                      F = FeatureCount(params.feature, m);
        const auto seed = static_cast<unsigned>(arrays.size());
        const View x = add(TestArray::Random(seed, DType::kF32, shape))->view();
        const View w =
            add(TestArray::Random(seed + 1, DType::kF32, {1, (shape[1] + 1) / 2, m, shape[3]}))
                ->view();
        const Shape rows = {shape[0], shape[1], shape[2], F};
        TestArray* const phi = add(TestArray(DType::kF32, rows));
        RandomFeaturesProblem p = {x, w, phi->view(), {}};
        features.push_back(phi);
        if (HasShift(params.feature)) {
          TestArray* const shift =
              add(TestArray(DType::kF32, {shape[0], shape[1], shares ? 1 : shape[2], 1}));
          p.shift = shift->view();
          features.push_back(shift);
        }
        forward.problems.push_back(p);
        const View dphi = add(TestArray::Random(seed + 2, DType::kBF16, rows))->view();
        TestArray* const dx = add(TestArray(DType::kF32, shape));
        gradients.push_back(dx);
        backward.problems.push_back({p, dphi, dx->view()});
      }
      ExpectOneResult(forward, features);
      Device& device = CpuOf("cuda", 1);
      RunOn(device, [&](Stream& stream) { return device.Run(stream, forward); });
      ExpectOneResult(backward, gradients);
      std::vector<PlainArray> results;
      for (const auto* outs : {&features, &gradients}) {
        for (TestArray* out : *outs) results.push_back(out->Read());
      }
      PlainRun(forward);
      PlainRun(backward);
      size_t i = 0;
      for (const auto* outs : {&features, &gradients}) {
        for (TestArray* out : *outs) ExpectNear(results[i++], out->Read(), 1e-5, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
