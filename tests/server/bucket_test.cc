// Which requests may share a batch.
#include <gtest/gtest.h>

#include "kernels/engine/engine.h"
#include "tests/engine/cpu_engine.h"

namespace attnd {
namespace {

std::string BucketWith(Engine& engine, DType bias) {
  Call call{.method = "softmax"};
  for (const char* name : {"q", "k", "v"}) {
    call.tensors[name] = DenseView(nullptr, DType::kBF16, {1, 1, 8, 8});
  }
  call.tensors["bias"] = DenseView(nullptr, bias, {1, 1, 8, 8});
  const auto plan = engine.MakePlan(call);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? (*plan)->bucket : "";
}

TEST(Bucket, DTypesOfAllTensorsAreEqualInABatch) {
  const auto engine = CpuEngine({.threads = 1});
  EXPECT_NE(BucketWith(*engine, DType::kF32), BucketWith(*engine, DType::kBF16));
  EXPECT_EQ(BucketWith(*engine, DType::kF32), BucketWith(*engine, DType::kF32));
}

}  // namespace
}  // namespace attnd
