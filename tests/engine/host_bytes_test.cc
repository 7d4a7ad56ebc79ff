// The host's memory for a running request stays within Plan::host_bytes, for any ids, labels and
// lists: all memory that this program allocates by `new`, without tensors.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <random>

#include "kernels/core/random_table.h"
#include "kernels/engine/engine.h"
#include "tests/engine/cpu_engine.h"

namespace {

std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

void* Allocate(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t live = live_bytes.fetch_add(static_cast<int64_t>(malloc_usable_size(memory))) +
                       static_cast<int64_t>(malloc_usable_size(memory));
  int64_t peak = peak_bytes.load();
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

namespace attnd::testing {
namespace {

constexpr int64_t kN = 4096;

// A call with data that it owns.
struct Request {
  Call call;
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::vector<int32_t>> integers;
  std::map<std::string, std::vector<uint8_t>> bytes;
  std::mt19937 random{1};

  Request(const std::string& method, OptionMap options, Direction direction) {
    call.method = method;
    call.options = std::move(options);
    call.direction = direction;
    for (const char* name : {"q", "k", "v"}) Floats(name, {1, 2, kN, 2});
    if (method == "reformer") call.tensors.erase("k");
    if (direction == Direction::kBackward) Floats("grad_out", {1, 2, kN, 2});
  }
  void Floats(const std::string& name, const Shape& shape) {
    floats[name].assign(static_cast<size_t>(shape.size()), 0.5f);
    call.tensors[name] = DenseView(floats[name].data(), DType::kF32, shape);
  }
  void Ints(const std::string& name, const Shape& shape, std::vector<int32_t> values) {
    integers[name] = std::move(values);
    call.tensors[name] = DenseView(integers[name].data(), DType::kI32, shape);
  }
  void Bytes(const std::string& name, const Shape& shape, const std::vector<int32_t>& values) {
    bytes[name].assign(values.begin(), values.end());
    call.tensors[name] = DenseView(bytes[name].data(), DType::kU8, shape);
  }
  std::vector<int32_t> Drawn(int64_t n, int64_t below) {
    std::vector<int32_t> values(static_cast<size_t>(n));
    for (int32_t& x : values) x = static_cast<int32_t>(random() % static_cast<uint64_t>(below));
    return values;
  }
  std::vector<int32_t> Permutation(int64_t n) {
    std::vector<int32_t> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), 0);
    std::shuffle(values.begin(), values.end(), random);
    return values;
  }
};

struct Case {
  std::string name, method;
  OptionMap options;
  std::function<void(Request*)> add;
};

void Segments(Request* r, std::vector<int32_t> ids) {
  r->Ints("segment_ids_q", {1, kN}, ids);
  r->Ints("segment_ids_kv", {1, kN}, std::move(ids));
}

// Twelve keys for every query, as blocks of one pair.
void SmallBlocks(Request* r) {
  constexpr int64_t kEach = 12;
  std::vector<int32_t> indptr(kN + 1);
  for (int64_t i = 0; i <= kN; ++i) indptr[i] = static_cast<int32_t>(kEach * i);
  r->Ints("indptr", {1, kN + 1}, std::move(indptr));
  r->Ints("indices", {kEach * kN}, r->Drawn(kEach * kN, kN));
}

std::vector<Case> Cases() {
  const OptionMap everything = {{"window_left", int64_t{-1}}};
  const auto nothing = [](Request*) {};
  std::vector<Case> cases = {
      {"causal", "softmax", {{"causal", true}}, nothing},
      {"random segments", "local", everything, [](Request* r) { Segments(r, r->Drawn(kN, 5)); }},
      {"lone segments", "local", everything, [](Request* r) { Segments(r, r->Permutation(kN)); }},
      {"causal segments",
       "softmax",
       {{"causal", true}},
       [](Request* r) { Segments(r, r->Drawn(kN, 50)); }},
      {"stripes", "local", everything,
       [](Request* r) {
         std::vector<int32_t> ids(kN);
         for (int64_t i = 0; i < kN; ++i) ids[i] = static_cast<int32_t>(i / 64 % 2) - 1;
         Segments(r, ids);
       }},
      {"small blocks",
       "block_sparse",
       {{"block_q", int64_t{1}}, {"block_k", int64_t{1}}},
       SmallBlocks},
      {"repeated blocks",
       "block_sparse",
       {{"block_q", int64_t{1}}, {"block_k", int64_t{1}}, {"duplicates", std::string("multiset")}},
       SmallBlocks},
      {"layout",
       "block_sparse",
       {{"block_q", int64_t{4}}, {"block_k", int64_t{4}}},
       [](Request* r) {
         r->Bytes("layout", {1, kN / 4, kN / 4}, r->Drawn(kN * kN / 16, 2));
       }},
      {"lone blocks",
       "blockwise",
       {{"num_blocks", int64_t{kN}}},
       [](Request* r) {
         r->Ints("perm", {1, kN}, r->Permutation(kN));
       }},
      {"blocks of all heads", "blockwise", {{"num_blocks", int64_t{kN / 48}}}, nothing},
      {"drawn keys", "random", {{"num_random", int64_t{40}}}, nothing},
      {"many drawn keys", "random", {{"num_random", int64_t{700}}}, nothing},
      {"sent keys",
       "random",
       {{"duplicates", std::string("multiset")}},
       [](Request* r) {
         r->Ints("rand_keys", {1, kN, 20}, r->Drawn(20 * kN, kN));
       }},
      {"drawn blocks", "bigbird", {{"block_size", int64_t{2}}}, nothing},
      {"global keys",
       "longformer",
       {{"dilation", std::vector<int64_t>{1, 7}}},
       [](Request* r) {
         r->Bytes("global_mask", {1, kN}, r->Drawn(kN, 2));
       }},
      {"examples",
       "etc",
       {{"num_global", int64_t{kN / 2}}},
       [](Request* r) {
         r->Ints("long_example_ids", {1, kN / 2}, r->Drawn(kN / 2, 7));
         r->Ints("global_example_ids", {1, kN / 2}, r->Drawn(kN / 2, 7));
       }},
      {"sentences",
       "etc",
       {{"num_global", int64_t{kN / 4}}},
       [](Request* r) {
         r->Ints("sentence_ids", {1, kN - kN / 4}, r->Drawn(kN - kN / 4, kN / 4));
         r->Floats("rel_bias_long", {32, 2});
       }},
      {"labels",
       "etc",
       {{"num_global", int64_t{kN / 4}}},
       [](Request* r) {
         r->Ints("l2g_ids", {1, kN - kN / 4, kN / 4}, r->Drawn((kN - kN / 4) * kN / 4, 32));
         r->Floats("rel_bias_long", {32, 2});
       }},
      {"stride", "sparse_strided", {{"stride", int64_t{37}}}, nothing},
      {"rounds", "reformer", {{"n_hashes", int64_t{64}}}, nothing},
      {"small chunks",
       "reformer",
       {{"n_hashes", int64_t{8}}, {"chunk_len", int64_t{1}}, {"dedup", false}},
       nothing},
      {"lone buckets",
       "reformer",
       {{"n_hashes", int64_t{4}}, {"chunk_len", int64_t{20}}, {"attend_across_buckets", false}},
       [](Request* r) {
         r->Ints("buckets", {1, 2, 4, kN}, r->Drawn(8 * kN, int64_t{1} << 30));
       }},
  };
  return cases;
}

class HostBytes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, HostBytes, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.method + "_" + info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST_P(HostBytes, StayWithinThePlan) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto engine = CpuEngine({.threads = 2});
    Request request(GetParam().method, GetParam().options, direction);
    GetParam().add(&request);
    const auto plan = engine->MakePlan(request.call);
    ASSERT_TRUE(plan.ok()) << plan.status();
    Stream stream(engine->device(), &engine->device().memory());
    const std::vector<Problem> batch = {{*plan, request.call.tensors}};
    const int64_t before = live_bytes.load();
    peak_bytes = before;
    const auto execution = engine->Execute(stream, batch);
    ASSERT_TRUE(execution.ok()) << execution.status();
    const int64_t kept = peak_bytes.load() - before;
    RecordProperty(std::string(Name(direction)), static_cast<int>(kept >> 10));
    RecordProperty(std::string(Name(direction)) + "_planned",
                   static_cast<int>((*plan)->host_bytes >> 10));
    // Names, views and the tape of a request, and buffers of its threads.
    constexpr int64_t kOthers = 256 << 10;
    EXPECT_LE(kept, (*plan)->host_bytes + kOthers) << Name(direction);
    // No case takes more than some bytes for each row, apart from sent or drawn lists.
    EXPECT_LE((*plan)->host_bytes, int64_t{128} << 20);
  }
}

// Symptom: 35000 sequences of two and three rows, 0.56 MB, took 6 GB for views, buffers and the
// tape of their problems, of which plans knew nothing.
TEST(HostBytesOfSequences, StayWithinThePlan) {
  constexpr int64_t kSequences = 2000;
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < kSequences; ++b) lengths.push_back(static_cast<int32_t>(2 + b % 2));
  const std::vector<float> data(3 * kSequences, 0.5f);
  const std::vector<std::pair<std::string, OptionMap>> cases = {
      {"linformer", {{"k", int64_t{1}}}},
      {"performer", {{"num_features", int64_t{4}}, {"causal", true}}},
      {"nystromformer", {{"num_landmarks", int64_t{1}}}},
      {"synthesizer", {}},
      {"reformer", {{"chunk_len", int64_t{1}}, {"n_hashes", int64_t{3}}}},
      {"sinkhorn", {{"block_size", int64_t{2}}}},
      {"sinkhorn", {{"block_size", int64_t{2}}, {"causal", true}}}};
  for (const auto& [method, options] : cases) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      Call call{.method = method, .options = options};
      call.direction = direction;
      for (const char* name : {"q", "k", "v", "grad_out"}) {
        if (direction == Direction::kForward && std::string(name) == "grad_out") continue;
        if (method == "reformer" && name[0] == 'k') continue;
        call.tensors[name] =
            DenseView(const_cast<float*>(data.data()), DType::kF32, {kSequences, 1, 3, 1});
      }
      for (const char* name : {"q_lengths", "kv_lengths"}) {
        call.tensors[name] = DenseView(lengths.data(), DType::kI32, {kSequences});
      }
      const auto engine = CpuEngine({.threads = 2});
      const auto plan = engine->MakePlan(call);
      ASSERT_TRUE(plan.ok()) << plan.status();
      Stream stream(engine->device(), &engine->device().memory());
      const int64_t before = live_bytes.load();
      peak_bytes = before;
      const std::vector<Problem> batch = {{*plan, call.tensors}};
      ASSERT_TRUE(engine->Execute(stream, batch).ok());
      EXPECT_LE(peak_bytes.load() - before, (*plan)->host_bytes) << method << Name(direction);
    }
  }
}

// Symptom: the normals that orthogonal rows are made from, 64 KiB, were not counted.
TEST(HostBytesOfDraws, StayWithinTheirCost) {
  for (const Distribution distribution : {Distribution::kUniform, Distribution::kOrthogonalRows}) {
    const DrawParams params = {.name = "w", .distribution = distribution};
    for (const Shape& shape : {Shape{3, 2}, Shape{3, 2000, 3}, Shape{5, 5000}, Shape{300, 200}}) {
      const int64_t before = live_bytes.load();
      peak_bytes = before;
      EXPECT_EQ(DrawTable(params, shape).size(), static_cast<size_t>(shape.size()));
      // Names, and for each of three buffers the page that the allocator may round up to.
      constexpr int64_t kOthers = (1 << 10) + 3 * 4096;
      EXPECT_LE(peak_bytes - before, CostOfDraw(params, shape).host_bytes + kOthers)
          << ToString(shape);
    }
  }
}

// Symptom: every queued request kept a list of options twice, the second time as text in its
// bucket.
TEST(HostBytesOfPlans, LongListsOfOptionsAreKeptOnce) {
  const auto engine = CpuEngine({.threads = 1});
  constexpr int64_t kHeads = 4096;
  Call call{.method = "longformer"};
  call.options["dilation"] = std::vector<int64_t>(kHeads, int64_t{1} << 40);
  for (const char* name : {"q", "k", "v"}) {
    call.tensors[name] = DenseView(nullptr, DType::kF32, {1, kHeads, 1, 1});
  }
  // The first plan of a process makes tables that stay allocated.
  ASSERT_TRUE(engine->MakePlan(call).ok());
  const int64_t before = live_bytes.load();
  const auto plan = engine->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  constexpr int64_t kOthers = 4 << 10;
  EXPECT_LE(live_bytes.load() - before, static_cast<int64_t>(8 * kHeads) + kOthers);
  EXPECT_GE((*plan)->host_bytes, static_cast<int64_t>(8 * kHeads));
  // One value for all heads: the same patterns.
  Call short_call = call;
  short_call.options["dilation"] = std::vector<int64_t>{int64_t{1} << 40};
  const auto short_plan = engine->MakePlan(short_call);
  ASSERT_TRUE(short_plan.ok()) << short_plan.status();
  EXPECT_EQ((*plan)->host_bytes - (*short_plan)->host_bytes, 8 * (kHeads - 1));
  // Different lists give different buckets.
  std::get<std::vector<int64_t>>(call.options["dilation"]).back() = 1;
  const auto other = engine->MakePlan(call);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE((*plan)->bucket, (*other)->bucket);
}

}  // namespace
}  // namespace attnd::testing
