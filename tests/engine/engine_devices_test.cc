// Engines of devices whose memory is not the host's, and of several devices.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/device/renamed_device.h"
#include "tests/device/strict_device.h"
#include "tests/device/test_device.h"
#include "tests/engine/every_method.h"
#include "tests/engine/placed.h"

namespace attnd::testing {
namespace {

// Fails at the second result.
class FailingDownload final : public RenamedDevice {
 public:
  using RenamedDevice::RenamedDevice;
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    if (!stream.is_dry() && ++downloads_ == 2) return {DeviceStatus::Code::kFailed, "download"};
    return RenamedDevice::Download(stream, source, bytes);
  }

 private:
  int downloads_ = 0;
};

// Symptom: the buffer of the first result was unmapped before its download, which then wrote to it.
TEST(EngineDevices, ResultsOutliveTheirDownloadsWhenAnotherFails) {
  const auto engine = EngineOn(std::make_unique<FailingDownload>("strict", NewTestDevice("strict")),
                               {.host_retain_bytes = 0});
  Request request;
  request.call.method = "softmax";
  request.Add("q", {1, 1, 4096, 128});  // a result of 2 MiB, which is a separate mapping
  request.Add("k", {1, 1, 64, 128});
  request.Add("v", {1, 1, 64, 128});
  const auto failed = PlanAndExecute(*engine, request.call);
  EXPECT_EQ(failed.status().message(), "download");
  EXPECT_EQ(engine->host_memory().used_bytes, 0);
  EXPECT_EQ(engine->host_memory().peak_bytes, (2 << 20) + 4 * 4096);
  EXPECT_TRUE(PlanAndExecute(*engine, request.call).ok());
}

// Fails at the second launch.
class FailingLaunch final : public RenamedDevice {
 public:
  using RenamedDevice::RenamedDevice;
  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (!stream.is_dry() && ++launches_ == 2) return {DeviceStatus::Code::kFailed, "launch"};
    return RenamedDevice::Run(stream, std::move(launch));
  }

 private:
  int launches_ = 0;
};

// Work that a failed run has launched may read inputs, which are freed after Execute returns.
TEST(EngineDevices, AFailedRunHasEndedWhenExecuteReturns) {
  const auto engine = EngineOn(std::make_unique<FailingLaunch>("strict", NewTestDevice("strict")));
  const auto request = MakeRequest({"softmax", {}}, Direction::kBackward, 256);
  const auto plan = engine->MakePlan(request->call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Stream stream(engine->device(0), &engine->device(0).memory());
  const auto failed = ExecutePlaced(*engine, stream, {{*plan, request->call.tensors}});
  EXPECT_EQ(failed.status().message(), "launch");
  const WorkProgress& progress = *stream.queue()->progress();
  EXPECT_GT(progress.position(), 0);
  EXPECT_TRUE(progress.HasPassed(progress.position()));
}

// Symptom: patterns were built from index tensors before their upload.
TEST(EngineDevices, IntegersAreReadableAtOnceOnALateDeviceWithHostMemory) {
  const auto late = EngineOn(
      *NewStrictDevice({.cpu = {.threads = 2, .poison_memory = true}, .has_host_memory = true}));
  const auto cpu = EngineOn(NewTestDevice("cpu"));
  const auto request = MakeRequest({"block_sparse", {}}, Direction::kForward, 256);
  const auto want = PlanAndExecute(*cpu, request->call);
  ASSERT_TRUE(want.ok()) << want.status();
  const auto got = PlanAndExecute(*late, request->call);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->costs.size(), 1u);
  EXPECT_EQ(got->costs[0].visible_pairs, want->costs[0].visible_pairs);
  EXPECT_EQ(late->host_memory().allocations, 1);
}

TEST(EngineDevices, PlansCountResultsThatTheHostHolds) {
  const auto cpu = EngineOn(NewTestDevice("cpu")), strict = EngineOn(NewTestDevice("strict"));
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto request = MakeRequest({"local", {{"window_left", int64_t{9}}}}, direction, 256);
    const auto on_cpu = cpu->MakePlan(request->call), on_strict = strict->MakePlan(request->call);
    ASSERT_TRUE(on_cpu.ok() && on_strict.ok());
    EXPECT_GE((*on_strict)->host_bytes, (*on_cpu)->host_bytes + (*on_strict)->output_bytes);
    const auto execution = PlanAndExecute(*strict, request->call);
    ASSERT_TRUE(execution.ok()) << execution.status();
    const PoolStats host = strict->host_memory();
    EXPECT_GE(host.used_bytes, (*on_strict)->output_bytes);
    EXPECT_LE(host.used_bytes, (*on_strict)->host_bytes);
  }
  EXPECT_EQ(cpu->host_memory().peak_bytes, 0);
}

// Counts the launches of plans.
class CountedPlans final : public RenamedDevice {
 public:
  using RenamedDevice::RenamedDevice;
  DeviceStatus Run(Stream& stream, Launch launch) override {
    launches_ += stream.is_dry() ? 1 : 0;
    return RenamedDevice::Run(stream, std::move(launch));
  }
  int64_t Take() { return std::exchange(launches_, 0); }

 private:
  int64_t launches_ = 0;
};

// Symptom: 4 s for 8 KB of lengths. Each step of a composed scan was planned for each length, and
// each of these steps has as many problems as there are lengths.
TEST(EngineDevices, APlanOfAComposedScanDescribesFewLengths) {
  auto device = std::make_unique<CountedPlans>("strict", NewTestDevice("strict"));
  CountedPlans& counted = *device;
  const auto engine = EngineOn(std::move(device));
  const auto launches = [&](int64_t B) {
    Request request;
    request.call.method = "linear_attention";
    request.call.options["causal"] = true;
    for (const char* name : {"q", "k", "v"}) request.Add(name, {B, 1, 2048, 1});
    std::vector<int32_t> lengths(static_cast<size_t>(B));
    for (size_t b = 0; b < lengths.size(); ++b) lengths[b] = static_cast<int32_t>(7 * b + 1);
    request.call.tensors["kv_lengths"] = DenseView(lengths.data(), DType::kI32, {B});
    EXPECT_TRUE(engine->MakePlan(request.call).ok());
    return counted.Take();
  };
  const int64_t few = launches(24);
  EXPECT_LE(launches(250), 2 * few);
}

class TwoDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(NewTestDevice("cpu"));
    devices.push_back(std::make_unique<RenamedDevice>("strict:0", NewTestDevice("strict")));
    engine_ = std::make_unique<Engine>(std::move(devices));
    request_ = MakeRequest({"local", {{"window_left", int64_t{70}}}}, Direction::kForward, 256);
  }

  std::shared_ptr<const Plan> PlanOn(const std::string& device) {
    request_->call.device = device;
    const auto plan = engine_->MakePlan(request_->call);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : nullptr;
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Request> request_;
};

TEST_F(TwoDevices, ARequestNamesItsDevice) {
  ASSERT_EQ(engine_->devices(), 2u);
  EXPECT_EQ(PlanOn("cpu")->device, 0u);
  EXPECT_EQ(PlanOn("strict:0")->device, 1u);
  request_->call.device = "cuda:0";
  EXPECT_EQ(engine_->MakePlan(request_->call).status().message(),
            "request: device must be cpu, strict:0 or empty, got \"cuda:0\"");
}

TEST_F(TwoDevices, ACallThatNamesNoneHasAPlanForEach) {
  const auto plans = engine_->MakePlans(request_->call);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->size(), 2u);
  EXPECT_EQ((*plans)[0], PlanOn("cpu"));
  EXPECT_EQ((*plans)[1], PlanOn("strict:0"));
  request_->call.device = "strict:0";
  const auto named = engine_->MakePlans(request_->call);
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_EQ(named->size(), 1u);
  EXPECT_EQ((*named)[0]->device, 1u);
}

// Predicts a second more than it takes.
class SlowByPrediction final : public RenamedDevice {
 public:
  using RenamedDevice::RenamedDevice;
  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (stream.is_dry()) stream.work().seconds += 1;
    return RenamedDevice::Run(stream, std::move(launch));
  }
};

TEST(EngineDevices, ACallThatNamesNoneRunsOnTheDeviceOfTheFewestSeconds) {
  const auto request = MakeRequest({"softmax", {}}, Direction::kForward, 64);
  for (const size_t fast : {0, 1, 2}) {
    std::vector<std::unique_ptr<Device>> devices;
    for (size_t i = 0; i < 3; ++i) {
      const std::string name = "cpu:" + std::to_string(i);
      if (i == fast) {
        devices.push_back(std::make_unique<RenamedDevice>(name, NewTestDevice("cpu")));
      } else {
        devices.push_back(std::make_unique<SlowByPrediction>(name, NewTestDevice("cpu")));
      }
    }
    Engine engine(std::move(devices));
    const auto plan = engine.MakePlan(request->call);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ((*plan)->device, fast);
  }
}

// Each copy takes a second by prediction.
class SlowCopies final : public RenamedDevice {
 public:
  using RenamedDevice::RenamedDevice;
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    if (!stream.is_dry()) return RenamedDevice::Upload(stream, destination, spans, source);
    for (const auto& span : spans) to_device += static_cast<int64_t>(span.size());
    stream.work().seconds += 1;
    return {};
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    if (!stream.is_dry()) return RenamedDevice::Download(stream, source, bytes);
    to_host += static_cast<int64_t>(bytes.size());
    stream.work().seconds += 1;
    return {};
  }

  int64_t to_device = 0, to_host = 0;
};

// Symptom: a plan for a device with memory of its own left out the way to it and back.
TEST(EngineDevices, PlansPredictTheWayOfInputsAndResults) {
  for (const char* name : {"strict", "cpu"}) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      auto device = std::make_unique<SlowCopies>(name, NewTestDevice(name));
      SlowCopies& slow = *device;
      const bool is_far = !slow.info().has_host_memory;
      const auto engine = EngineOn(std::move(device));
      const auto request = MakeRequest({"local", {{"window_left", int64_t{1}}}}, direction, 256);
      const auto plan = engine->MakePlan(request->call);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(slow.to_device, is_far ? (*plan)->input_bytes : 0);
      EXPECT_EQ(slow.to_host, is_far ? (*plan)->output_bytes : 0);
      const size_t copies = (*plan)->tensors.size() + (*plan)->outputs.size();
      EXPECT_EQ(std::floor((*plan)->seconds), is_far ? static_cast<double>(copies) : 0);
    }
  }
}

TEST_F(TwoDevices, RunOnTheirOwnMemoryAndGiveTheSameNumbers) {
  std::vector<Execution> executions;
  for (size_t i = 0; i < 2; ++i) {
    request_->call.device = engine_->device(i).info().name;
    const int64_t before[] = {engine_->device(0).launches(), engine_->device(1).launches()};
    auto execution = PlanAndExecute(*engine_, request_->call);
    ASSERT_TRUE(execution.ok()) << execution.status();
    executions.push_back(*std::move(execution));
    EXPECT_GT(engine_->device(i).launches(), before[i]);
    EXPECT_EQ(engine_->device(1 - i).launches(), before[1 - i]);
  }
  ExpectSameBits(executions[0], executions[1]);
}

TEST_F(TwoDevices, ABatchHasOneDeviceAndAStreamOfIt) {
  const auto on_cpu = PlanOn("cpu"), on_strict = PlanOn("strict:0");
  ASSERT_TRUE(on_cpu != nullptr && on_strict != nullptr);
  EXPECT_NE(on_cpu->bucket, on_strict->bucket);
  // A call that names no device shares the bucket of the one that it got.
  const auto unnamed = PlanOn("");
  EXPECT_EQ(unnamed->bucket, (unnamed->device == 0 ? on_cpu : on_strict)->bucket);
  Stream stream(engine_->device(1), &engine_->device(1).memory());
  const Problem problem{on_cpu, request_->call.tensors};
  const auto refused = engine_->Execute(stream, {&problem, 1}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "batch: stream must be of the device of its plans, cpu, got one of strict:0");
}

TEST_F(TwoDevices, CancelledRunsFreeTheirMemory) {
  RunControl control;
  control.Cancel();
  for (size_t i = 0; i < 2; ++i) {
    const auto plan = PlanOn(engine_->device(i).info().name);
    ASSERT_NE(plan, nullptr);
    Stream stream(engine_->device(i), &engine_->device(i).memory(), &control);
    const auto stopped = ExecutePlaced(*engine_, stream, {{plan, request_->call.tensors}});
    EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
    EXPECT_EQ(engine_->device(i).memory().stats().used_bytes, 0);
  }
}

}  // namespace
}  // namespace attnd::testing
