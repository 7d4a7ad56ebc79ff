// A lane whose device runs out of memory, or fails for good.
#include "tests/device/renamed_device.h"
#include "tests/device/strict_device.h"
#include "tests/server/lane_fixture.h"

namespace attnd {
namespace {

const absl::Status kNoMemory = absl::ResourceExhaustedError("puppet: no memory");

TEST_F(LaneTest, ABatchWithoutMemoryRunsInHalves) {
  puppet_.fails = [](size_t requests) { return requests > 2 ? kNoMemory : absl::OkStatus(); };
  Run(MakePuppet("1", 1), MakePuppet("2", 2), MakePuppet("3", 3), MakePuppet("4", 4),
      MakePuppet("5", 5), MakePuppet("6", 6), MakePuppet("7", 7));
  EXPECT_THAT(puppet_.batches, ElementsAre(7, 3, 1, 2, 4, 2, 2));
  for (int i = 1; i <= 7; ++i) {
    const Answer& answer = answers_[std::to_string(i)];
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.results[0].view.As<float>()[0], static_cast<float>(i));
  }
  EXPECT_EQ(answers_["7"].phases.batch_requests, 2);
}

TEST_F(LaneTest, ARequestWithoutMemoryRunsOnceMoreWhenTheOthersHaveLeft) {
  int calls = 0;
  puppet_.fails = [&](size_t requests) {
    return requests > 1 || ++calls == 1 ? kNoMemory : absl::OkStatus();
  };
  Run(MakePuppet("first", 1), MakePuppet("second", 2));
  EXPECT_THAT(puppet_.batches, ElementsAre(2, 1, 1, 1));
  EXPECT_TRUE(answers_["first"].status.ok());
  EXPECT_TRUE(answers_["second"].status.ok());
}

TEST_F(LaneTest, ARequestThatFindsNoMemoryAloneIsRefused) {
  puppet_.fails = [](size_t) { return kNoMemory; };
  Run(MakePuppet("first", 1), MakePuppet("second", 2));
  EXPECT_THAT(puppet_.batches, ElementsAre(2, 1, 1, 1, 1));
  EXPECT_EQ(answers_["first"].status, kNoMemory);
  EXPECT_EQ(answers_["second"].status, kNoMemory);
  Run(MakePuppet("alone", 1));
  EXPECT_EQ(puppet_.batches.size(), 6u);
  EXPECT_EQ(answers_["alone"].status, kNoMemory);
  EXPECT_EQ(lane_->input_bytes(), 0);
}

class LaneOnDevice : public LaneTest {
 protected:
  void UseDevice(std::unique_ptr<Device> device) {
    lane_.reset();
    answers_.clear();  // results are in memory of the engine
    engine_ = EngineOn(std::move(device));
    lane_.emplace(Lane::Parts{
        .engine = engine_.get(),
        .batcher = &*batcher_,
        .metrics = &metrics_,
        .clock = &clock_,
        .device_failed = [this](const absl::Status& failure) { failures_.push_back(failure); }});
  }
  std::unique_ptr<Task> MakeLocal(int i) {
    return MakeReal(std::to_string(i), "local", 2, 1024, 16, 0.1F * static_cast<float>(i),
                    {{"window_left", int64_t{4}}});
  }

  std::vector<absl::Status> failures_;
};

// Inputs of 384 KiB each, and a result of 136 KiB.
TEST_F(LaneOnDevice, InputsThatDoNotFitBesideOthersRunAfterThem) {
  std::vector<std::string> alone;
  for (int i = 0; i < 5; ++i) {
    Run(MakeLocal(i));
    ASSERT_TRUE(answers_[std::to_string(i)].status.ok());
    alone.push_back(Bytes(answers_[std::to_string(i)].results[0]));
  }
  UseDevice(*testing::NewStrictDevice(
      {.cpu = {.threads = 1, .retain_bytes = 0}, .most_bytes = int64_t{1} << 20}));
  Run(MakeLocal(0), MakeLocal(1), MakeLocal(2), MakeLocal(3), MakeLocal(4));
  for (int i = 0; i < 5; ++i) {
    const Answer& answer = answers_[std::to_string(i)];
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.count, 1);
    EXPECT_EQ(Bytes(answer.results[0]), alone[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(lane_->input_bytes(), 0);
  EXPECT_THAT(failures_, IsEmpty());
  UseDevice(*testing::NewStrictDevice(
      {.cpu = {.threads = 1, .retain_bytes = 0}, .most_bytes = int64_t{1} << 18}));
  Run(MakeLocal(0), MakeLocal(1));
  for (const char* name : {"0", "1"}) {
    EXPECT_TRUE(absl::IsResourceExhausted(answers_[name].status)) << answers_[name].status;
    EXPECT_THAT(std::string(answers_[name].status.message()), HasSubstr("no memory for"));
  }
}

// Fails when told to.
class BreakingDevice final : public testing::RenamedDevice {
 public:
  using RenamedDevice::RenamedDevice;
  std::string failure() const override { return why; }
  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (why.empty() || stream.is_dry()) return RenamedDevice::Run(stream, std::move(launch));
    return {DeviceStatus::Code::kFailed, "launch: it has failed"};
  }
  std::string why;
};

TEST_F(LaneOnDevice, AFailedDeviceAnswersAllItsRequests) {
  auto device = std::make_unique<BreakingDevice>("cuda:0", *NewCpuDevice({.threads = 1}));
  BreakingDevice& breaking = *device;
  UseDevice(std::move(device));
  Run(MakeLocal(0));
  EXPECT_TRUE(answers_["0"].status.ok());
  for (int i = 1; i <= 3; ++i) {
    std::unique_ptr<Task> task = MakeLocal(i);
    ASSERT_TRUE(batcher_->Submit(task).ok());
  }
  auto batch = batcher_->TryPull();
  ASSERT_EQ(batch.tasks.size(), 3u);
  std::unique_ptr<Task> waits = MakeLocal(4);
  ASSERT_TRUE(batcher_->Submit(waits).ok());
  breaking.why = "an illegal address";
  lane_->RunBatch(std::move(batch));
  const absl::Status failure = absl::UnavailableError("device: cuda:0 failed: an illegal address");
  for (const char* name : {"1", "2", "3", "4"}) {
    EXPECT_EQ(answers_[name].status, failure) << name;
    EXPECT_EQ(answers_[name].count, 1) << name;
  }
  EXPECT_THAT(failures_, ElementsAre(failure));
  std::unique_ptr<Task> late = MakeLocal(5);
  EXPECT_EQ(batcher_->Submit(late), failure);
  EXPECT_EQ(batcher_->waiting(), 0);
}

// Health said SERVING until the next request had failed.
TEST_F(LaneOnDevice, ADeviceThatFailsWhileNothingRunsIsNoticed) {
  auto device = std::make_unique<BreakingDevice>("cuda:0", *NewCpuDevice({.threads = 1}));
  BreakingDevice& breaking = *device;
  UseDevice(std::move(device));
  EXPECT_TRUE(lane_->CheckDevice().ok());
  std::unique_ptr<Task> waits = MakeLocal(1);
  ASSERT_TRUE(batcher_->Submit(waits).ok());
  breaking.why = "it has fallen off the bus";
  const absl::Status failure =
      absl::UnavailableError("device: cuda:0 failed: it has fallen off the bus");
  EXPECT_EQ(lane_->CheckDevice(), failure);
  EXPECT_THAT(failures_, ElementsAre(failure));
  EXPECT_EQ(answers_["1"].status, failure);
}

}  // namespace
}  // namespace attnd
