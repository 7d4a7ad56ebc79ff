#include "kernels/engine/plan_cache.h"
#include "tests/engine/cpu_engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace attnd {
namespace {

constexpr int64_t kN = 4;

View F32(const Shape& shape, Layout layout = Layout::kBHND) {
  return DenseView(nullptr, DType::kF32, shape, layout);
}

Call Attention() {
  Call call;
  call.method = "softmax";
  for (const char* name : {"q", "k", "v"}) call.tensors[name] = F32({1, 2, kN, 8});
  return call;
}

std::string KeyWith(const std::function<void(Call&)>& change) {
  Call call = Attention();
  change(call);
  return PlanCache::KeyOf(call, 0);
}

TEST(PlanCacheTest, EachDeviceHasAKey) {
  EXPECT_NE(PlanCache::KeyOf(Attention(), 0), PlanCache::KeyOf(Attention(), 1));
}

std::string KeyWithLengths(std::vector<int32_t> lengths) {
  Call call = Attention();
  call.tensors["kv_lengths"] =
      DenseView(lengths.data(), DType::kI32, {static_cast<int64_t>(lengths.size())});
  return PlanCache::KeyOf(call, 0);
}

TEST(PlanCacheTest, CallsThatDifferInWhatAPlanReadsHaveDifferentKeys) {
  std::vector<std::string> keys = {
      KeyWith([](Call&) {}),
      KeyWith([](Call& c) { c.method = "linear_attention"; }),
      KeyWith([](Call& c) { c.direction = Direction::kBackward; }),
      KeyWith([](Call& c) { c.is_deterministic = false; }),
      KeyWith([](Call& c) { c.tensors.erase("v"); }),
      KeyWith([](Call& c) {
        c.tensors["v"] = F32({1, 2, kN, 9});
      }),
      KeyWith([](Call& c) {
        c.tensors["v"] = F32({2, kN, 8});
      }),
      KeyWith([](Call& c) {
        c.tensors["v"] = F32({1, 2, kN, 8}, Layout::kBNHD);
      }),
      KeyWith([](Call& c) { c.tensors["v"].dtype = DType::kBF16; }),
      KeyWith([](Call& c) { c.tensors["v"].stride[2] = 16; }),
      KeyWith([](Call& c) { c.options["causal"] = true; }),
      KeyWith([](Call& c) { c.options["causal"] = false; }),
      KeyWith([](Call& c) { c.options["causal"] = int64_t{1}; }),
      KeyWith([](Call& c) { c.options["causal"] = uint64_t{1}; }),
      KeyWith([](Call& c) { c.options["causal"] = 1.0; }),
      KeyWith([](Call& c) { c.options["causal"] = std::string("true"); }),
      KeyWith([](Call& c) { c.options["causal"] = std::vector<int64_t>{1}; }),
      KeyWith([](Call& c) {
        c.options["causal"] = std::vector<int64_t>{1, 0};
      }),
      KeyWith([](Call& c) { c.options["caus"] = std::string("altrue"); }),
      KeyWithLengths({1}),
      KeyWithLengths({2}),
      KeyWithLengths({1, 2}),
      KeyWithLengths({2, 1}),
  };
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_EQ(std::count(keys.begin(), keys.end(), ""), 0);
  EXPECT_EQ(KeyWithLengths({1, 2}), KeyWithLengths({1, 2}));
}

// The values of a list that read as the name, the type and the value of another option.
TEST(PlanCacheTest, AListIsNoOtherOption) {
  const auto as_number = [](const char* name) {
    int64_t number = 0;
    std::memcpy(&number, name, sizeof(number));
    return number;
  };
  const OptionValue value = int64_t{5};
  const std::string two = KeyWith([&](Call& c) {
    c.options["a"] = std::vector<int64_t>{1};
    c.options["bbbbbbbb"] = value;
  });
  const std::string one = KeyWith([&](Call& c) {
    c.options["a"] =
        std::vector<int64_t>{1, 8, as_number("bbbbbbbb"), static_cast<int64_t>(value.index()), 5};
  });
  EXPECT_EQ(two.size(), one.size());  // else the values do not imitate a key
  EXPECT_NE(two, one);
}

TEST(PlanCacheTest, AddressesAndValuesThatNoPlanReadsAreNotInTheKey) {
  float one[64] = {}, other[64] = {1};
  int32_t ids[4] = {1, 2, 3, 4};
  const auto key = [&](float* q, int32_t first) {
    return KeyWith([&](Call& c) {
      ids[0] = first;
      c.tensors["q"].data = q;
      c.tensors["segment_ids"] = DenseView(ids, DType::kI32, {kN});
    });
  };
  EXPECT_EQ(key(one, 1), key(other, 7));
}

TEST(PlanCacheTest, LongListsAreNotKept) {
  EXPECT_EQ(KeyWithLengths(std::vector<int32_t>(PlanCache::kMostKeyBytes)), "");
  EXPECT_EQ(KeyWith([](Call& c) { c.options["dilations"] = std::vector<int64_t>(65536); }), "");
}

TEST(PlanCacheTest, PlansInUseStayAndTheRestIsEvicted) {
  PlanCache cache;
  const auto used = std::make_shared<Plan>();
  const auto unused = std::make_shared<Plan>();
  cache.Add("used", used);
  cache.Add("unused", unused);
  for (size_t i = 0; i < 10 * PlanCache::kMostPlans; ++i) {
    EXPECT_EQ(cache.Find("used"), used);
    cache.Add("plan " + std::to_string(i), std::make_shared<Plan>());
  }
  EXPECT_EQ(cache.Find("unused"), nullptr);
  EXPECT_EQ(unused.use_count(), 1);
  EXPECT_EQ(cache.Find("never"), nullptr);
}

TEST(PlanCacheTest, AnEngineGivesThePlanAgain) {
  const auto engine = CpuEngine({.threads = 1});
  Call call = Attention();
  const auto first = engine->MakePlan(call);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*engine->MakePlan(call), *first);
  for (auto& [name, view] : call.tensors) view = F32({2, 2, kN, 8});
  const auto second = engine->MakePlan(call);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->tokens, 2 * (*first)->tokens);
}

}  // namespace
}  // namespace attnd
