#include <cmath>
#include <utility>

#include "tests/gpu/bench_case.h"

namespace attnd {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr int64_t kRows = int64_t{1} << 20, kWidth = 64;

View Rows(DType dtype = kF32) { return NewArray(dtype, {kRows, kWidth}); }

void AddAlong(std::vector<BenchCase>* cases) {
  cases->push_back({"softmax of 64 float32", 0, [] {
                      return SoftmaxArgs{.axis = 1, .problems = {{Rows(), Rows()}}};
                    }});
  cases->push_back(
      {"softmax of 1024 float32", 0, [] {
         const Shape wide = {kRows / 16, 1024};
         return SoftmaxArgs{.axis = 1, .problems = {{NewArray(kF32, wide), NewArray(kF32, wide)}}};
       }});
  cases->push_back({"softmax of columns float32", 0, [] {
                      return SoftmaxArgs{.axis = 0, .problems = {{Rows(), Rows()}}};
                    }});
  cases->push_back(
      {"reduce of columns float32", 0, [] {
         return ReduceArgs{.axis = 0, .problems = {{Rows(), NewArray(kF32, {1, kWidth})}}};
       }});
  cases->push_back({"cumulative of columns float32", 0, [] {
                      return CumulativeArgs{.axis = 0, .problems = {{Rows(), Rows(), {}}}};
                    }});
  cases->push_back(
      {"layer_norm of 64 float32", 0, [] {
         return LayerNormArgs{.problems = {{Rows(), Rows(), NewArray(kF32, {kRows, 1})}}};
       }});
  cases->push_back({"layer_norm gradient float32", 0, [] {
                      return LayerNormGradArgs{
                          .problems = {{Rows(), NewArray(kF32, {kRows, 1}), Rows(), Rows()}}};
                    }});
}

void AddByIndex(std::vector<BenchCase>* cases) {
  for (const DType dtype : {kF32, kBF16}) {
    const std::string type = Name(dtype);
    cases->push_back({"gather " + type, 0, [dtype] {
                        return GatherRowsArgs{
                            .problems = {{Rows(dtype), NewShuffled(kRows), Rows(dtype), {}, {}}}};
                      }});
    cases->push_back({"scatter " + type, 0, [dtype] {
                        return ScatterRowsArgs{
                            .problems = {{Rows(dtype), NewShuffled(kRows), Rows(dtype), {}, {}}}};
                      }});
  }
  for (const int64_t kept : {4096, 64}) {
    cases->push_back({"sort of 4096 keys, the first " + std::to_string(kept), 0, [kept] {
                        return SortArgs{.problems = {{NewArray(kF32, {4096, 4096}),
                                                      NewArray(DType::kI32, {4096, kept})}}};
                      }});
  }
}

void AddOthers(std::vector<BenchCase>* cases) {
  cases->push_back({"merge of 4 parts float32", 0, [] {
                      const Shape shape = {1, 64, kRows / 64, kWidth}, rows = {1, 64, kRows / 64};
                      MergeProblem problem;
                      for (int i = 0; i < 4; ++i) {
                        problem.parts.push_back({NewArray(kF32, shape), NewArray(kF32, rows)});
                      }
                      problem.out = NewArray(kF32, shape);
                      problem.lse = NewArray(kF32, rows);
                      return MergeArgs{.problems = {problem}};
                    }});
  cases->push_back({"feature_rows elu + 1, norm float32", 0, [] {
                      return FeatureRowsArgs{
                          .features = {.map = ElementOp::kEluPlusOne, .norm = RowNorm::kSum},
                          .problems = {{Rows(), {}, Rows()}}};
                    }});
  constexpr int64_t kDirections = 128;
  cases->push_back(
      {"random_features exp float32", 2.0 * kRows * kDirections * kWidth, [] {
         const Shape out = {1, 64, kRows / 64, kDirections};
         return RandomFeaturesArgs{
             .problems = {{NewArray(kF32, {1, 64, kRows / 64, kWidth}),
                           NewArray(kF32, {1, 64, kDirections, kWidth}), NewArray(kF32, out),
                           NewArray(kF32, {1, 64, kRows / 64, 1})}}};
       }});
  for (const int64_t length : {1024, 4096}) {
    const double points = 16.0 * static_cast<double>(length) * 1024;
    cases->push_back(
        {"fft 16 of " + std::to_string(length) + " x 1024 float32",
         2.5 * points * std::log2(static_cast<double>(length) * 1024), [length] {
           const Shape shape = {1, 16, length, 1024};
           return FftArgs{.problems = {{NewArray(kF32, shape), NewArray(kF32, shape)}}};
         }});
  }
  cases->push_back({"add 64M float32", 0, [] {
                      return ElementwiseArgs{
                          .op = ElementOp::kAdd,
                          .problems = {{.a = Rows(), .b = Rows(), .out = Rows()}}};
                    }});
  cases->push_back({"gelu 64M bfloat16 to float32", 0, [] {
                      return ElementwiseArgs{.op = ElementOp::kGelu,
                                             .problems = {{.a = Rows(kBF16), .out = Rows()}}};
                    }});
  cases->push_back({"depthwise_conv of 33 taps float32", 2.0 * kRows * kWidth * 33, [] {
                      const Shape shape = {1, 64, kRows / 64, kWidth};
                      return DepthwiseConvArgs{
                          .left = 16,
                          .problems = {{NewArray(kF32, shape), NewArray(kF32, {64, 33}),
                                        NewArray(kF32, shape)}}};
                    }});
  cases->push_back({"pool, mean of 16 float32", 0, [] {
                      std::vector<RowRange> ranges;
                      for (int64_t i = 0; i < kRows; i += 16) ranges.push_back({i, i + 16});
                      return PoolArgs{
                          .op = PoolOp::kMean,
                          .problems = {{Rows(), NewArray(kF32, {kRows / 16, kWidth}), {}, ranges}}};
                    }});
}

// 64 heads of N rows.
ScanProblem Scanned(DType dtype, int64_t N) {
  const Shape shape = {1, 64, N, kWidth};
  ScanProblem p{.q = NewArray(dtype, shape),
                .k = NewArray(dtype, shape),
                .v = NewArray(dtype, shape),
                .out = NewArray(dtype, shape)};
  p.seqs = {{.nq = N, .nk = N, .offset = 0}};
  return p;
}

void AddScan(std::vector<BenchCase>* cases) {
  constexpr int64_t kRows = 8192;
  constexpr double kProducts = 2.0 * 64 * kWidth * kWidth;  // a row
  const auto forward = [&](DType dtype, int64_t N) {
    cases->push_back({"scan causal N" + std::to_string(N) + " D64 H64 " + Name(dtype),
                      2 * kProducts * static_cast<double>(N), [dtype, N] {
                        return ScanArgs{.params = {.causal = true},
                                        .problems = {Scanned(dtype, N)}};
                      }});
  };
  forward(kBF16, 2048);  // to compare with attention
  for (const DType dtype : {kBF16, kF32}) {
    forward(dtype, kRows);
    const std::string type = Name(dtype);
    cases->push_back({"scan gradient causal N8192 D64 H64 " + type, 5 * kProducts * kRows, [dtype] {
                        ScanGradProblem grad{.forward = Scanned(dtype, kRows)};
                        const Shape shape = {1, 64, kRows, kWidth};
                        grad.dout = NewArray(dtype, shape);
                        grad.dq = NewArray(dtype, shape);
                        grad.dk = NewArray(dtype, shape);
                        grad.dv = NewArray(dtype, shape);
                        return ScanGradArgs{.params = {.causal = true}, .problems = {grad}};
                      }});
  }
}

}  // namespace

std::vector<BenchCase> RowCases() {
  std::vector<BenchCase> cases;
  AddScan(&cases);
  AddAlong(&cases);
  AddByIndex(&cases);
  AddOthers(&cases);
  return cases;
}

}  // namespace attnd
