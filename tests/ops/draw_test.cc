// Ops::Draw: the same numbers on every device and in every list, kept for later runs, and planned
// without drawing.
#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/draw_cache.h"
#include "tests/ops/ops_on_cpu_case.h"
#include "tests/plain/check_observer.h"

namespace attnd::testing {
namespace {

using Floats = std::vector<std::vector<float>>;

struct Problems {
  std::vector<DrawParams> params;
  std::vector<Shape> shapes;
};

// Of all kinds; the third is the first again.
Problems Mixed() {
  const DrawParams normal = {.seed = 1, .name = "a", .deviation = 2};
  const DrawParams uniform = {
      .seed = 1, .name = "a", .distribution = Distribution::kUniform, .low = -1, .high = 3};
  const DrawParams orthogonal = {
      .seed = 5, .name = "b", .suffix = "#2", .distribution = Distribution::kOrthogonalRows};
  const DrawParams truncated = {.name = "c", .distribution = Distribution::kTruncatedNormal};
  return {{normal, uniform, normal, normal, orthogonal, orthogonal, truncated},
          {{131, 65}, {131, 65}, {131, 65}, {65, 131}, {2, 67, 32}, {2, 33, 64}, {0, 4}}};
}

Floats ValuesOf(const Problems& problems) {
  Floats values;
  for (size_t p = 0; p < problems.shapes.size(); ++p) {
    values.push_back(DrawTable(problems.params[p], problems.shapes[p]));
  }
  return values;
}

Floats DrawOn(Device& device, const Problems& problems, DrawCache* cache = nullptr) {
  Stream stream(device, &device.memory());
  Ops ops(stream, /*tape=*/nullptr, /*patterns=*/nullptr, cache);
  Tensor tables = ops.Draw(problems.params, problems.shapes);
  EXPECT_TRUE(ops.status().ok()) << ops.status();
  if (!ops.status().ok()) return {};
  EXPECT_EQ(ShapesOf(tables), problems.shapes);
  if (!device.info().has_host_memory) tables = ToHost(stream, tables);
  Floats values;
  for (size_t p = 0; p < tables.size(); ++p) values.push_back(Elements(tables[p]));
  return values;
}

void ExpectSameTablesOn(Device& device) {
  const Problems problems = Mixed();
  const Floats want = ValuesOf(problems);
  EXPECT_EQ(DrawOn(device, problems), want);
  DrawCache cache;
  EXPECT_EQ(DrawOn(device, problems, &cache), want);
  EXPECT_EQ(DrawOn(device, problems, &cache), want) << "kept by the cache";
  for (size_t p = 0; p < want.size(); ++p) {
    EXPECT_EQ(DrawOn(device, {{problems.params[p]}, {problems.shapes[p]}}), Floats{want[p]});
  }
}

TEST(Draw, TheSameNumbersOnEveryDeviceAndInEveryList) {
  for (const char* name : {"plain", "cpu", "strict"}) {
    SCOPED_TRACE(name);
    ExpectSameTablesOn(*NewTestDevice(name));
  }
  for (const std::string& isa : AvailableIsas()) {
    for (int threads : {1, 2}) {
      SCOPED_TRACE(isa + " " + std::to_string(threads));
      ExpectSameTablesOn(CpuOf(isa, threads));
    }
  }
}

TEST(Draw, OneParameterSetServesAList) {
  const Problems all = Mixed();
  const auto device = NewTestDevice("cpu");
  Stream stream(*device, &device->memory());
  Ops ops(stream, /*tape=*/nullptr);
  const Tensor tables = ops.Draw(all.params[0], {{4, 3}, {7, 5}});
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(Elements(tables[0]), DrawTable(all.params[0], {4, 3}));
  EXPECT_EQ(Elements(tables[1]), DrawTable(all.params[0], {7, 5}));
}

TEST(Draw, NeedsAProblemAndParamsOfEach) {
  const auto device = NewTestDevice("plain");
  Stream stream(*device, &device->memory());
  {
    Ops ops(stream, /*tape=*/nullptr);
    EXPECT_TRUE(ops.Draw(DrawParams(), {}).empty());
    EXPECT_EQ(ops.status(), absl::InternalError("draw: needs a problem"));
  }
  Ops ops(stream, /*tape=*/nullptr);
  EXPECT_TRUE(ops.Draw(std::vector<DrawParams>(1), {{1}, {1}}).empty());
  EXPECT_EQ(ops.status(), absl::InternalError("draw: params of every problem"));
}

class DrawOnDevices : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Devices, DrawOnDevices, ::testing::Values("plain", "cpu", "strict"),
                         [](const auto& info) { return info.param; });

const DrawParams kLarge = {.seed = 3, .name = "w"};
const Shape kLargeShape = {1024, 256};

// The status of a run that draws a large table and is stopped at the `last` check point, and the
// check points until then.
std::pair<absl::Status, int64_t> DrawLarge(Device& device, DrawCache* cache,
                                           int64_t last = INT64_MAX) {
  std::atomic<int64_t> checks = 0;
  const CheckObserver observer([&] { return ++checks >= last; });
  const auto run = observer.NewRun();
  const RunScope scope(run.get());
  Stream stream(device, &device.memory(), run.get());
  Ops ops(stream, /*tape=*/nullptr, /*patterns=*/nullptr, cache);
  ops.Draw(kLarge, {kLargeShape});
  static_cast<void>(stream.Wait());
  return {ops.status(), checks.load()};
}

TEST_P(DrawOnDevices, ALaterRunDoesNotDrawAgain) {
  const auto device = NewTestDevice(GetParam());
  DrawCache cache;
  const auto [first, drawn] = DrawLarge(*device, &cache);
  EXPECT_TRUE(first.ok()) << first;
  const auto [second, kept] = DrawLarge(*device, &cache);
  EXPECT_TRUE(second.ok()) << second;
  EXPECT_GE(drawn, kLargeShape.size() >> 10);
  EXPECT_LE(kept, drawn / 8);
  // Without a cache every run draws.
  DrawLarge(*device, nullptr);
  EXPECT_GE(DrawLarge(*device, nullptr).second, kLargeShape.size() >> 10);
}

TEST_P(DrawOnDevices, AStoppedDrawIsCancelledAndStoresNothing) {
  const auto device = NewTestDevice(GetParam());
  DrawCache cache;
  const int64_t before = CachedDrawBytes();
  for (DrawCache* kept : {&cache, static_cast<DrawCache*>(nullptr)}) {
    const auto [status, checks] = DrawLarge(*device, kept, /*last=*/20);
    EXPECT_EQ(status, absl::CancelledError("request: stopped"));
    EXPECT_EQ(checks, 20);
  }
  EXPECT_EQ(CachedDrawBytes(), before);
  EXPECT_EQ(device->memory().stats().used_bytes, 0);
  EXPECT_EQ(DrawOn(*device, {{kLarge}, {kLargeShape}}, &cache),
            Floats{DrawTable(kLarge, kLargeShape)});
}

TEST_P(DrawOnDevices, APlanCountsWithoutDrawing) {
  const auto device = NewTestDevice(GetParam());
  for (const Distribution distribution :
       {Distribution::kUniform, Distribution::kNormal, Distribution::kTruncatedNormal,
        Distribution::kGumbel, Distribution::kOrthogonalRows}) {
    const DrawParams params = {.name = "w", .distribution = distribution};
    const Shape shape = {1 << 18, 64};
    const DrawCost cost = CostOfDraw(params, shape);
    EXPECT_GE(cost.host_bytes, 4 * kMostDrawn);
    EXPECT_GT(cost.seconds, 0.05);
    DrawCache cache;
    const int64_t before = CachedDrawBytes();
    Stream upload(*device, /*memory=*/nullptr), dry(*device, /*memory=*/nullptr);
    // What the device adds for the bytes of a table.
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(nullptr),
                                           static_cast<size_t>(4 * kMostDrawn));
    EXPECT_TRUE(device->Upload(upload, nullptr, {&bytes, 1}, nullptr).ok());
    Ops ops(dry, /*tape=*/nullptr, /*patterns=*/nullptr, &cache);
    const Tensor table = ops.Draw(params, {shape, shape});
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    EXPECT_EQ(table[0].data, nullptr);
    EXPECT_EQ(dry.workspace().peak_bytes(), 4 * kMostDrawn);
    EXPECT_EQ(dry.work().host_bytes, upload.work().host_bytes + cost.host_bytes);
    EXPECT_DOUBLE_EQ(dry.work().seconds, upload.work().seconds + cost.seconds);
    EXPECT_EQ(CachedDrawBytes(), before);
  }
}

}  // namespace
}  // namespace attnd::testing
