// What patterns take of a CUDA device: tiles that are computed were kept with the pattern, for all
// of its rows, planned by nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attend/device_pattern.h"
#include "kernels/cuda/attend/device_tiles.h"
#include "kernels/cuda/attend/stored_tiles.h"
#include "kernels/device/device.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/source.h"
#include "tests/cuda/pattern_run.h"
#include "tests/engine/cpu_engine.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

TEST(CudaPatterns, RowsBeyondTheLengthsAreNotComputedAndNothingIsKept) {
  const auto device = NewDevice(int64_t{1} << 30);
  const PatternRun run({});
  EXPECT_TRUE(run.On(*device).ok());
  EXPECT_EQ(run.masks->tiles, 1 * 4);
  EXPECT_LE(device->memory().stats().peak_bytes, 200 << 10);
}

TEST(CudaPatterns, AStopEndsTheComputing) {
  const auto device = NewDevice(int64_t{1} << 30);
  const PatternRun run({.nq = 2048, .nk = 2048});
  RunControl control;
  run.masks->control = &control;
  run.masks->stops_at = 100;
  EXPECT_EQ(run.On(*device, &control).code(), DeviceStatus::Code::kStopped);
  EXPECT_LE(run.masks->tiles, 100 + 32);
}

TEST(CudaPatterns, ARequestThatTakesTooMuchIsRefused) {
  const auto device = NewDevice(int64_t{8} << 20);
  const PatternRun run({.nq = 2048, .nk = 2048});
  const DeviceStatus status = run.On(*device);
  EXPECT_EQ(status.code(), DeviceStatus::Code::kTooLarge);
  EXPECT_EQ(run.masks->tiles, 0);
}

// Patterns were computed one after the other until they were too many.
TEST(CudaPatterns, TwoThatTakeTooMuchTogetherAreRefusedBeforeOneIsComputed) {
  const auto device = NewDevice(int64_t{8} << 20);
  const PatternRun one({.nq = 1024, .nk = 2048});
  EXPECT_TRUE(one.On(*device).ok());
  const PatternRun two({.nq = 1024, .nk = 2048, .B = 2});
  EXPECT_EQ(two.On(*device).code(), DeviceStatus::Code::kTooLarge);
  EXPECT_EQ(two.masks->tiles, 0);
}

// Constants take twice what labels do, for which it was refused.
TEST(CudaPatterns, TilesEndWhereTheirBytesDo) {
  const auto device = NewDevice(int64_t{8} << 20);
  Stream stream(*device, &device->memory());
  constexpr size_t kPairs = kTile * kTile;
  cuda::DeviceTiles tiles(stream, cuda::DeviceTiles::Memory::kDevice, /*most_bytes=*/kPairs * 6);
  const auto with_labels = [&](uint16_t label) {
    return TileTerms{.labels = std::vector<uint16_t>(kPairs, label)};
  };
  EXPECT_EQ(tiles.AddTerms({.bias = std::vector<float>(kPairs, 1)}), 0);
  EXPECT_EQ(tiles.AddTerms(with_labels(1)), 1);
  EXPECT_FALSE(tiles.is_too_large());
  EXPECT_EQ(tiles.AddTerms(with_labels(2)), cuda::TileStore::kFailed);
  EXPECT_TRUE(tiles.is_too_large());
  EXPECT_EQ(tiles.bytes(), kPairs * 6);
  EXPECT_TRUE(stream.Wait().ok());
}

// Where rows of tiles see other halves in turn, runs of keys took gigabytes of the host.
TEST(CudaPatterns, RunsOfKeysAreBoundedAndOfGradientsAlone) {
  constexpr int64_t kTiles = 520, N = kTiles * kTile;
  std::vector<int32_t> queries(N), keys(N);
  for (int64_t i = 0; i < N; ++i) {
    queries[i] = i / kTile % 2;
    keys[i] = i < N / 2 ? 0 : 1;
  }
  const PatternSource whole = SourceOf(N, N, nullptr, {});
  const Pattern pattern = WithinSegments(whole, queries, keys).build();
  ASSERT_NE(pattern.computed_masks, nullptr);
  const auto device = NewDevice(int64_t{64} << 20);
  Stream stream(*device, &device->memory());
  const int64_t most = cuda::DevicePattern::MostBytes(*device);
  const auto copy = [&](bool has_keys, DeviceStatus* status) {
    cuda::StoredTiles tiles(pattern, N, N);
    return cuda::DevicePattern::Computed(stream, pattern, &tiles, /*term_bytes=*/0, has_keys, most,
                                         status);
  };
  DeviceStatus status;
  EXPECT_NE(copy(/*has_keys=*/false, &status), nullptr);
  EXPECT_EQ(copy(/*has_keys=*/true, &status), nullptr);
  EXPECT_EQ(status.code(), DeviceStatus::Code::kTooLarge);
  EXPECT_NE(copy(/*has_keys=*/false, &status), nullptr);
  EXPECT_TRUE(stream.Wait().ok());
}

// A row with many runs is one run from some tile on, with what it does not see.
TEST(CudaPatterns, TilesBetweenThoseThatARowSeesAreNotComputed) {
  constexpr int64_t kSide = 256, N = kSide * kSide;
  const ImageBlocks image = {kSide, kSide, 1, kTile, 64, 0};
  const PatternSource source =
      ImageLocal2d({.Nq = N, .Nk = N, .lengths = {.nq = N, .nk = N}}, image);
  const Pattern pattern = source.build();
  ASSERT_GT(pattern.visible_tiles, 1.9 * source.visible_tiles);
  const auto device = NewDevice(int64_t{8} << 30);
  Stream stream(*device, &device->memory());
  const cuda::DevicePattern::Cost most =
      cuda::DevicePattern::CostOf(static_cast<int64_t>(source.visible_tiles), 1, 0);
  DeviceStatus status;
  cuda::StoredTiles tiles(pattern, N, N);
  const auto copy = cuda::DevicePattern::Computed(stream, pattern, &tiles, /*term_bytes=*/0,
                                                  /*has_keys=*/true, most.device_bytes, &status);
  EXPECT_NE(copy, nullptr) << status.text();
  EXPECT_TRUE(stream.Wait().ok());
}

// Whole tiles 0 to 4, of which the first is only found to be; none; an edge at 6.
class WholeAndEdge : public Predicate {
 public:
  void Spans(int64_t, int64_t first, int64_t last, std::vector<TileSpan>* spans) const override {
    for (const TileSpan& span : {TileSpan{0, 1, false}, {1, 5, true}, {6, 7, false}}) {
      Emit(std::max(span.first, first), std::min(span.last, last), span.full, spans);
    }
  }
  void Keep(int64_t, int64_t key_tile, TileMask* mask) const override {
    if (key_tile == 6) std::fill(mask->begin() + 1, mask->end(), 0);
    if (key_tile == 5 || key_tile > 6) mask->fill(0);
  }
  std::string key() const override { return "whole and edge"; }
};

TEST(CudaPatterns, WholeTilesAreTakenAsTheyAre) {
  constexpr int64_t Nq = kTile, Nk = 8 * kTile;
  PatternBuilder builder(Nq, Nk, {.runs = 0, .masks = 0, .looks = 0, .terms = 0, .shapes = 0});
  builder.Add(std::make_shared<WholeAndEdge>());
  const Pattern pattern = std::move(builder).Build();
  cuda::StoredTiles stored(pattern, Nq, Nk);
  EXPECT_EQ(stored.computed_masks(), 2);
  const auto device = NewDevice(int64_t{8} << 20);
  Stream stream(*device, &device->memory());
  cuda::DeviceTiles tiles(stream, cuda::DeviceTiles::Memory::kWorkspace, int64_t{1} << 20);
  ASSERT_TRUE(tiles.Take(pattern, stored.computed_masks()) && stored.Compute(&tiles));
  ASSERT_TRUE(tiles.Flush() && stored.Transpose(/*most_runs=*/8));
  const std::vector<attnd::Run>& runs = stored.by_query().runs;
  ASSERT_EQ(runs.size(), 2);
  EXPECT_EQ(runs[0], (attnd::Run{0, 5, attnd::Run::kFull}));
  EXPECT_EQ(runs[1], (attnd::Run{6, 1, 0}));
  EXPECT_EQ(stored.computed_pairs(), 5 * kTile * kTile + kTile);
  EXPECT_EQ(stored.by_key().runs.size(), 6);
  EXPECT_TRUE(stream.Wait().ok());
}

// A method on the device alone, with integers of the host.
struct Request {
  std::string method;
  int64_t N;
  OptionMap options = {};
  std::map<std::string, std::vector<int32_t>> ids = {};  // [1,n], or of these shapes
  std::map<std::string, Shape> id_shapes = {};
  std::map<std::string, Shape> floats = {};
  int64_t queries = 0;      // 0: N
  int64_t least_bytes = 0;  // of the run
  int64_t most_times = 6;   // so many are planned at most
  int64_t H = 1;
  Direction direction = Direction::kForward;
};

// What the run takes of the device beyond its inputs is planned, and most of it is given back.
void ExpectPlanned(const Request& request) {
  SCOPED_TRACE(request.method);
  const auto engine = EngineOn(NewDevice(int64_t{1} << 30), {.keep_plans = false});
  Device& device = engine->device();
  Stream stream(device, &device.memory());
  Call call{.method = request.method, .options = request.options, .direction = request.direction};
  std::map<std::string, Shape> floats = request.floats;
  for (const char* name : {"q", "k", "v"}) floats[name] = {1, request.H, request.N, 1};
  if (request.queries > 0) floats["q"] = {1, request.H, request.queries, 1};
  if (request.direction == Direction::kBackward) floats["grad_out"] = floats["q"];
  std::vector<std::shared_ptr<Buffer>> inputs;
  for (const auto& [name, shape] : floats) {
    const std::vector<float> values(static_cast<size_t>(shape.size()), 0.5f);
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(values))};
    auto uploaded = engine->Upload(stream, DType::kF32, pieces, nullptr);
    ASSERT_TRUE(uploaded.ok());
    ASSERT_TRUE(engine->WaitForUploads(stream).ok());
    call.tensors[name] = DenseView((*uploaded)->data(), DType::kF32, shape);
    inputs.push_back(*std::move(uploaded));
  }
  for (const auto& [name, values] : request.ids) {
    const auto found = request.id_shapes.find(name);
    const Shape shape = found != request.id_shapes.end()
                            ? found->second
                            : Shape{1, static_cast<int64_t>(values.size())};
    call.tensors[name] = DenseView(const_cast<int32_t*>(values.data()), DType::kI32, shape);
  }
  const auto plan = engine->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t before = device.memory().stats().used_bytes;
  const Problem problem{*plan, call.tensors};
  {
    const auto execution = engine->Execute(stream, {&problem, 1});
    ASSERT_TRUE(execution.ok()) << execution.status();
    EXPECT_LE(execution->peak_workspace_bytes, (*plan)->workspace_bytes);
    EXPECT_GE(execution->peak_workspace_bytes, request.least_bytes);
  }
  const PoolStats after = device.memory().stats();
  EXPECT_LE(after.peak_bytes - before, (*plan)->workspace_bytes);
  EXPECT_LE(after.used_bytes - before, engine->cached_pattern_bytes());
  EXPECT_LE((*plan)->workspace_bytes, request.most_times * (after.peak_bytes - before));
  // The tiles are what takes most.
  EXPECT_GE(after.peak_bytes - before, request.least_bytes);
}

// Of all tiles of N x N pairs.
int64_t BytesOfMasks(int64_t N) {
  return (N / kTile) * (N / kTile) * static_cast<int64_t>(sizeof(TileMask));
}

TEST(CudaPatterns, PlansCountWhatComputedTilesTake) {
  constexpr int64_t N = 1024;
  std::mt19937 random(3);
  const auto ids = [&](int64_t n, int32_t below) {
    std::vector<int32_t> values(static_cast<size_t>(n));
    for (int32_t& value : values) value = static_cast<int32_t>(random() % below);
    return values;
  };
  const std::vector<int32_t> segments = ids(N, 8);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    ExpectPlanned({.method = "softmax",
                   .N = N,
                   .ids = {{"segment_ids_q", segments}, {"segment_ids_kv", segments}},
                   .least_bytes = BytesOfMasks(N) / 2,
                   .direction = direction});
  }
  constexpr int64_t kGlobals = N / 2;
  ExpectPlanned({.method = "etc",
                 .N = N,
                 .options = {{"num_global", kGlobals}},
                 .ids = {{"long_example_ids", ids(N - kGlobals, 8)},
                         {"global_example_ids", ids(kGlobals, 8)}},
                 .least_bytes = BytesOfMasks(N) / 2});
  ExpectPlanned({.method = "etc",
                 .N = N,
                 .options = {{"num_global", kGlobals}},
                 .ids = {{"sentence_ids", ids(N - kGlobals, kGlobals)}},
                 .floats = {{"rel_bias_long", {32, 1}}},
                 .least_bytes = BytesOfMasks(N) / 2});
}

// Symptom: heads that share a pattern were planned as if each had its own.
TEST(CudaPatterns, PlansCountAPatternOfAllHeadsOnce) {
  constexpr int64_t N = 2048;
  std::mt19937 random(3);
  std::vector<int32_t> segments(N);
  for (int32_t& id : segments) id = static_cast<int32_t>(random() % 8);
  ExpectPlanned({.method = "softmax",
                 .N = N,
                 .ids = {{"segment_ids_q", segments}, {"segment_ids_kv", segments}},
                 .least_bytes = BytesOfMasks(N) / 2,
                 .H = 16});
}

// Symptom: constants of tiles were not planned at all.
TEST(CudaPatterns, PlansCountConstantsOfEveryHead) {
  constexpr int64_t N = 2048, kBlock = 16, kHeads = 2, kRandom = 40;
  constexpr int64_t kBlocks = N / kBlock, kRows = kBlocks - 2;  // the first and the last see all
  std::mt19937 random(3);
  std::vector<int32_t> blocks(kHeads * kRows * kRandom);
  for (int32_t& block : blocks) block = static_cast<int32_t>(random() % kBlocks);
  ExpectPlanned({.method = "bigbird",
                 .N = N,
                 .options = {{"block_size", kBlock}, {"duplicates", std::string("multiset")}},
                 .ids = {{"rand_blocks", blocks}},
                 .id_shapes = {{"rand_blocks", {kHeads, kRows, kRandom}}},
                 .least_bytes = kHeads * 250 * kTile * kTile * int64_t{sizeof(float)},
                 .most_times = 8,  // most pairs of tiles have no constant
                 .H = kHeads});
}

// Symptom: classes of one query were planned as if they were whole tiles, and none computed.
TEST(CudaPatterns, PlansCountTilesOfShortClasses) {
  ExpectPlanned({.method = "sparse_strided",
                 .N = 1 << 15,
                 .options = {{"part", std::string("comb")}, {"stride", int64_t{256}}},
                 .queries = 256,
                 .least_bytes = 100 << 10,
                 .most_times = 8});
}

TEST(CudaPatterns, PlansCountTilesOfImages) {
  ExpectPlanned({.method = "image_local_2d",
                 .N = 64 * 64,
                 .options = {{"grid", std::vector<int64_t>{64, 64}},
                             {"query_shape", std::vector<int64_t>{7, 9}},
                             {"memory_flange", std::vector<int64_t>{31, 31}}},
                 .least_bytes = 300 << 10,
                 .most_times = 16});
}

// Symptom: 131 KB of a whole image took forty times what was planned.
TEST(CudaPatterns, PlansOfWholeImagesCountTheirTiles) {
  constexpr int64_t kSide = 256, N = kSide * kSide;
  const ImageBlocks image = {kSide, kSide, 7, 9, 31, 31};  // a block is no tile
  const Pattern pattern =
      ImageLocal2d({.Nq = N, .Nk = N, .lengths = {.nq = N, .nk = N}}, image).build();
  int64_t computed = 0;
  for (const attnd::Run& run : pattern.by_query.runs) {
    if (run.mask == Run::kComputed) computed += run.count;
  }
  ASSERT_GT(computed, 10000);
  const auto engine = EngineOn(NewDevice(int64_t{64} << 30), {});
  Call call{.method = "image_local_2d",
            .options = {{"grid", std::vector<int64_t>{kSide, kSide}},
                        {"query_shape", std::vector<int64_t>{7, 9}},
                        {"memory_flange", std::vector<int64_t>{31, 31}}}};
  for (const char* name : {"q", "k", "v"}) {
    call.tensors[name] = DenseView(nullptr, DType::kF16, {1, 1, N, 1});
  }
  const auto plan = engine->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE((*plan)->workspace_bytes, computed * static_cast<int64_t>(sizeof(TileMask)));
}

}  // namespace
}  // namespace attnd::testing
