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

TEST(Bucket, BackwardsAreAllDeterministicInABatchOrNone) {
  const auto engine = CpuEngine({.threads = 1});
  const auto bucket_of = [&](Direction direction, bool is_deterministic) {
    Call call{.method = "softmax", .direction = direction, .is_deterministic = is_deterministic};
    for (const char* name : {"q", "k", "v", "grad_out"}) {
      if (direction == Direction::kForward && name == std::string("grad_out")) continue;
      call.tensors[name] = DenseView(nullptr, DType::kBF16, {1, 1, 8, 8});
    }
    const auto plan = engine->MakePlan(call);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? (*plan)->bucket : "";
  };
  EXPECT_NE(bucket_of(Direction::kBackward, true), bucket_of(Direction::kBackward, false));
  EXPECT_EQ(bucket_of(Direction::kForward, true), bucket_of(Direction::kForward, false));
}

}  // namespace
}  // namespace attnd
