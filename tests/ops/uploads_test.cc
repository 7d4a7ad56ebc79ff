// Host data that a batch needs is uploaded once. Symptom: each layer of a composed pool uploaded
// its list, and each of two calls of attend the slopes of ALiBi.
#include <gtest/gtest.h>

#include "kernels/method/registry.h"
#include "tests/ops/ops_on_cpu_case.h"
#include "tests/plain/declining_device.h"

namespace attnd::testing {
namespace {

int64_t UploadsOf(const LaunchSet& declined, const std::function<void(Ops&)>& formula) {
  PlainDevice plain;
  DecliningDevice device(plain, declined);
  Stream stream(device, &device.memory());
  Ops ops(stream, nullptr);
  formula(ops);
  EXPECT_TRUE(ops.status().ok()) << ops.status();
  return device.uploads();
}

// Uploads of a pool over ranges of `width` rows, each `step` after the one before.
int64_t UploadsOfPool(PoolOp op, int64_t width, int64_t step) {
  Values x = Random({{2, 40, 3}, {2, 64, 3}}, 1);
  std::vector<std::vector<RowRange>> ranges(2);
  for (size_t p = 0; p < 2; ++p) {
    for (int64_t n = 0; n + width <= x.shapes[p][1]; n += step) {
      ranges[p].push_back({n, n + width});
    }
  }
  return UploadsOf(ComposedLaunches(), [&](Ops& ops) { ops.Pool(op, x.AsTensor(), ranges); });
}

TEST(Uploads, OfAComposedPoolDoNotDependOnHowOftenItsRangesOverlap) {
  for (PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax}) {
    SCOPED_TRACE(static_cast<int>(op));
    EXPECT_EQ(UploadsOfPool(op, /*width=*/8, /*step=*/1), UploadsOfPool(op, 8, 8));
  }
  EXPECT_EQ(UploadsOfPool(PoolOp::kSum, 8, 1), 1);
}

int64_t UploadsOfLongformer(const OptionMap& options) {
  const Method& method = *FindMethod("longformer");
  Reasons reasons("longformer");
  const OptionsHandle parsed = method.Parse(options, &reasons);
  EXPECT_TRUE(reasons.empty()) << reasons.status();
  std::map<std::string, Values> values;
  std::map<std::string, View> views;
  Inputs in;
  for (const char* name : {"q", "k", "v", "q_global"}) {
    values[name] = Random({{1, 2, 20, 4}}, static_cast<unsigned>(values.size()));
    const Tensor x = values[name].AsTensor();
    views[name] = x[0];
    (*name == 'k' ? in.k : *name == 'v' ? in.v : name[1] == 0 ? in.q : in.tensors[name]) = x;
  }
  ProblemShape shape = {1, 2, 2, 20, 20, 4, 4};
  shape.tensors = &views;
  in.problems = {&shape, 1};
  return UploadsOf({}, [&](Ops& ops) { method.Run(ops, in, parsed.get()); });
}

TEST(Uploads, StandardSlopesOfAlibiServeLocalAndGlobalRows) {
  EXPECT_EQ(UploadsOfLongformer({{"alibi", true}}), UploadsOfLongformer({}) + 1);
}

}  // namespace
}  // namespace attnd::testing
