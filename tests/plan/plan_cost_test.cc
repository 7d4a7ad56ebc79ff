// One request of 97 bytes kept the planner busy for 24 s. The cost of planning depends on the bytes
// sent, not on the numbers in them: every method, at the ends of its options, sizes and tensors.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "kernels/method/registry.h"
#include "kernels/ops/ops.h"
#include "tests/engine/cpu_engine.h"
#include "tests/plan/counted_memory.h"
#include "tests/plan/draft.h"
#include "tests/plan/planned_device.h"

namespace attnd::testing {
namespace {

// A plan allocates for each problem, sequence, source, launch and tensor that it describes, so that
// the count of allocations follows its work on any machine, however busy. Constants are one and a
// half times what plans take: they describe at most so many sources and problems, and as many
// launches as options of small ranges ask for, whatever is sent. How many bytes they take for them
// differs between devices: kMostAllocatedBytes.
constexpr int64_t kMostAllocations = 40000;
constexpr int64_t kAllocationsOfStep = 20, kAllocatedBytesOfStep = 1 << 10;
constexpr int64_t kMostBytes = int64_t{16} << 20;  // alive at once
// Of the planning thread. Only time shows a loop that allocates nothing: at the largest sizes,
// 2^30, it takes a second or more. Plans take 20 ms at most.
constexpr double kMostSeconds = 0.5;

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Cost {
  double seconds = 0;
  Allocations allocations;
  int64_t steps = 0;  // PlanWork
  absl::Status status;
};
std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << cost.allocations.count << " allocations of " << cost.allocations.bytes << " bytes, "
             << cost.allocations.peak_bytes << " at once, " << cost.seconds << " s, for "
             << cost.steps << " steps; " << cost.status.ToString().substr(0, 200);
}

Engine& TheEngine() {
  static Engine* engine = EngineOn(NewPlannedDevice(), {.keep_plans = false}).release();
  return *engine;
}

template <class Work>  // returns a status
Cost CostOf(const Work& work) {
  Cost cost;
  ResetAllocations();
  const double start = ThreadSeconds();
  cost.status = work();
  cost.seconds = ThreadSeconds() - start;
  cost.allocations = AllocationsSoFar();
  return cost;
}

Cost CostOfPlan(const Call& call) {
  Cost cost = CostOf([&] { return TheEngine().MakePlan(call).status(); });
  cost.steps = PlanWork(call);
  return cost;
}

void ExpectSmall(const Cost& cost, const std::string& text) {
  const Allocations& taken = cost.allocations;
  EXPECT_LE(taken.count, kMostAllocations + kAllocationsOfStep * cost.steps) << text << " " << cost;
  EXPECT_LE(taken.bytes, kMostAllocatedBytes + kAllocatedBytesOfStep * cost.steps)
      << text << " " << cost;
  EXPECT_LE(taken.peak_bytes, kMostBytes) << text << " " << cost;
  EXPECT_LE(cost.seconds, kMostSeconds) << text << " " << cost;
}

// Plans the draft; as long as it is refused, changes it as the refusal requires. True: accepted.
bool TryAndFollow(Draft draft, int* plans) {
  constexpr int kFollowed = 6;
  for (int followed = 0; followed < kFollowed; ++followed) {
    const auto made = CallOf(draft);
    const Cost cost = CostOfPlan(made->call);
    ++*plans;
    ExpectSmall(cost, draft.Text());
    if (cost.status.ok()) return true;
    if (!Follow(std::string(cost.status.message()), &draft)) return false;
  }
  return false;
}

class PlanCost : public ::testing::TestWithParam<std::string> {};

TEST_P(PlanCost, FollowsWhatIsSent) {
  // Each change alone, then 150 (or ATTND_PLAN_MIXTURES) mixtures of two and more.
  const char* asked = std::getenv("ATTND_PLAN_MIXTURES");
  const size_t mixtures = asked == nullptr ? 150 : std::strtoul(asked, nullptr, 10);
  const Method& method = *FindMethod(GetParam());
  const std::vector<Change> changes = ChangesOf(method);
  int plans = 0, accepted = 0, drafts = 0;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::mt19937 random(7);
    for (size_t round = 0; round < changes.size() + mixtures; ++round) {
      Draft draft = Plain(method, direction);
      if (round < changes.size()) {
        changes[round].apply(&draft);
      } else {
        for (size_t many = 2 + random() % 6; many > 0; --many) {
          changes[random() % changes.size()].apply(&draft);
        }
      }
      ++drafts;
      accepted += TryAndFollow(draft, &plans) ? 1 : 0;
      // A few lines suffice for a method that breaks the rule everywhere.
      if (::testing::Test::HasFailure() && asked == nullptr) return;
    }
  }
  // Else every draft was refused: `Follow` or `Plain` lacks something that this method requires.
  EXPECT_GE(accepted, drafts / 2) << plans << " plans";
}

std::vector<std::string> MethodIds() {
  std::vector<std::string> ids;
  for (const auto& method : AllMethods()) ids.push_back(method->info().id);
  return ids;
}
INSTANTIATE_TEST_SUITE_P(Methods, PlanCost, ::testing::ValuesIn(MethodIds()),
                         [](const auto& info) { return info.param; });

// Requests that took seconds or hundreds of megabytes.
struct Known {
  const char* name;
  const char* method;
  std::map<std::string, int64_t> sizes;
  OptionMap options;
  std::map<std::string, Fill> tensors;
};
std::vector<Known> KnownRequests() {
  using Ints = std::vector<int64_t>;
  constexpr int64_t kMany = 1 << 14, kMost = 1 << 16;
  const std::map<std::string, Fill> packed = {{"cu_seqlens_q", Fill::kLeast},
                                              {"cu_seqlens_k", Fill::kLeast}};
  const std::map<std::string, Fill> apart = {{"cu_seqlens_q", Fill::kEach},
                                             {"cu_seqlens_k", Fill::kEach}};
  const std::map<std::string, Fill> ragged = {{"q_lengths", Fill::kEach},
                                              {"kv_lengths", Fill::kEach}};
  return {
      {"SourceOfEachHeadAndSequence",
       "sparse_fixed",
       {{"B", 1}, {"H", kMany}, {"Hkv", kMany}, {"Nq", 0}, {"Nk", 0}, {"S+1", 1024}},
       {{"num_verts", kMany}, {"stride", kMany}, {"summary", int64_t{1}}},
       packed},
      {"SourceOfEachHeadAndRow",
       "sparse_fixed",
       {{"B", 64}, {"H", 4096}, {"Nq", kMany}, {"Nk", kMany}},
       {{"num_verts", int64_t{4096}}, {"stride", kMany}, {"summary", int64_t{1}}},
       ragged},
      {"LongImage",
       "image_local_2d",
       {{"Nq", 1 << 30}, {"Nk", 1 << 30}},
       {{"grid", Ints{1 << 30, 1}}},
       {}},
      {"ProblemOfEachRow",
       "linear_attention",
       {{"B", kMost}, {"H", 1}, {"Hkv", 1}},
       {{"feature_map", std::string("dpfp")}},
       {}},
      {"ProblemOfEachLength",
       "linear_attention",
       {{"B", kMost}, {"H", 1}, {"Hkv", 1}, {"Nq", 1 << 20}, {"Nk", 1 << 20}},
       {{"feature_map", std::string("dpfp")}},
       ragged},
      {"RowsOfAllLengths",
       "softmax",
       {{"B", kMost}, {"H", 1}, {"Hkv", 1}, {"Nq", 1 << 20}, {"Nk", 1 << 20}},
       {},
       ragged},
      {"SequencesOfAllLengths",
       "sparse_strided",
       {{"B", 1}, {"Nq", 1 << 30}, {"Nk", 1 << 30}, {"S+1", 8193}},
       {{"part", std::string("alternate")}},
       apart},
      {"EqualSequences", "softmax", {{"B", 1}, {"Nq", 0}, {"Nk", 0}, {"S+1", 8193}}, {}, packed},
      {"HeadsOfManyEmptySequences",
       "softmax",
       {{"B", 1}, {"H", kMost}, {"Hkv", kMost}, {"Nq", 0}, {"Nk", 0}, {"S+1", 8193}},
       {},
       packed},
      {"PermutationsOfManyHeads",
       "blockwise",
       {{"B", 1}, {"H", kMost}, {"Nq", 8192}, {"Nk", 8192}, {"S+1", 8193}},
       {{"num_blocks", int64_t{1}}},
       apart},
      {"DilationOfEachHead",
       "longformer",
       {{"B", 1}, {"H", kMost}, {"Nq", 1 << 20}, {"Nk", 1 << 20}},
       {{"dilation",
         [] {
           Ints all(kMost);
           for (int64_t h = 0; h < kMost; ++h) all[h] = h + 1;
           return all;
         }()}},
       {}},
      {"ListsOfManyTokens",
       "random",
       {{"B", 1}, {"H", 2}, {"Nq", 1 << 22}, {"Nk", 1 << 30}},
       {{"num_random", int64_t{1}}},
       {}},
      {"SortsOfLongRowsInTurns",
       "routing",
       {{"B", 4}, {"H", 1 << 16}, {"Hkv", 1 << 16}, {"Nq", 1 << 18}, {"Nk", 1 << 18}},
       {{"n_clusters", int64_t{64}}, {"window", int64_t{1} << 18}},
       {}},
      {"ManyHeadsOfFewSequences",
       "linear_attention",
       {{"B", 16}, {"H", kMost}, {"Hkv", kMost}, {"Nq", 1 << 10}, {"Nk", 1 << 10}},
       {},
       {}},
      {"ManySequencesOfFewHeads",
       "local",
       {{"B", kMost}, {"H", 16}, {"Hkv", 16}, {"Nq", 1 << 10}, {"Nk", 1 << 10}},
       {{"window_left", int64_t{2}}},
       {}},
      {"BiasOfManyTokens",
       "softmax",
       {{"B", kMost}, {"H", 1}, {"Hkv", 1}, {"Nq", 1 << 10}, {"Nk", 1 << 10}},
       {},
       {{"bias", Fill::kMost}}},
  };
}

// A plan knows what drawing takes without drawing.
TEST(PlanCostOf, ATableThatIsDrawn) {
  for (const Distribution distribution : {Distribution::kNormal, Distribution::kOrthogonalRows}) {
    const Shape shape = {1 << 18, 64};
    ASSERT_EQ(shape.size(), kMostDrawn);
    const Cost cost = CostOf([&] {
      Stream dry(TheEngine().device(), /*memory=*/nullptr);
      Ops ops(dry, /*tape=*/nullptr);
      ops.Draw({.name = "w", .distribution = distribution}, {shape});
      return ops.status();
    });
    EXPECT_TRUE(cost.status.ok()) << cost;
    EXPECT_LE(cost.allocations.count, 1000) << cost;
    EXPECT_LE(cost.allocations.bytes, 1 << 16) << cost;
  }
}

TEST(PlanCostOf, KnownRequests) {
  for (const Known& known : KnownRequests()) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      Draft draft = Plain(*FindMethod(known.method), direction);
      for (const auto& [letter, size] : known.sizes) draft.sizes[letter] = size;
      draft.sizes["D"] = draft.sizes["Dv"] = 4;
      draft.options = known.options;
      draft.tensors = known.tensors;
      const auto made = CallOf(draft);
      const Cost cost = CostOfPlan(made->call);
      ExpectSmall(cost, known.name);
      if (std::getenv("ATTND_PLAN_SHOW") != nullptr) {
        std::cout << known.name << " " << cost << "\n";
      }
    }
  }
}

// 4104 bytes, which took a gigabyte of the host: pointers for every head of every sequence.
TEST(RunCostOf, HeadsOfEmptySequences) {
  Draft draft = Plain(*FindMethod("softmax"), Direction::kForward);
  draft.sizes = {{"B", 1},  {"H", 1 << 16}, {"Hkv", 1 << 16}, {"Nq", 0},
                 {"Nk", 0}, {"D", 4},       {"Dv", 4},        {"S+1", 513}};
  draft.tensors = {{"cu_seqlens_q", Fill::kLeast}, {"cu_seqlens_k", Fill::kLeast}};
  const auto made = CallOf(draft);
  const auto plan = TheEngine().MakePlan(made->call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Device& device = TheEngine().device();
  Stream stream(device, &device.memory());
  const Problem problem{*plan, made->call.tensors};
  const Cost cost = CostOf([&] { return TheEngine().Execute(stream, {&problem, 1}).status(); });
  EXPECT_TRUE(cost.status.ok()) << cost;
  EXPECT_LE(cost.allocations.peak_bytes, kMostBytes) << cost;
  EXPECT_LE(cost.allocations.peak_bytes, (*plan)->host_bytes + kMostBytes / 4) << cost;
}

}  // namespace
}  // namespace attnd::testing
