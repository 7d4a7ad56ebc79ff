// A lane on a device whose uploads fail after they were started.
#include <utility>

#include "kernels/device/device.h"
#include "tests/server/lane_fixture.h"

namespace attnd {
namespace {

// Returns the failure from the first Wait after it, as WorkQueue requires.
class FailingQueue final : public WorkQueue {
 public:
  std::shared_ptr<WorkProgress> progress() const override { return progress_; }
  DeviceStatus Wait() override { return std::exchange(failure, DeviceStatus()); }

  DeviceStatus failure;

 private:
  // Of work that is done as it is asked for.
  class Done final : public WorkProgress {
    int64_t position() const override { return 0; }
    bool HasPassed(int64_t) const override { return true; }
    bool WaitFor(int64_t) override { return true; }
  };
  const std::shared_ptr<WorkProgress> progress_ = std::make_shared<Done>();
};

// The CPU device, but uploads fail: the queue of the stream reports the failure.
class FailingUploads final : public Device {
 public:
  explicit FailingUploads(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  const DeviceInfo& info() const override { return device_->info(); }
  BufferPool& memory() override { return device_->memory(); }
  std::shared_ptr<WorkQueue> NewQueue() override { return std::make_shared<FailingQueue>(); }
  DeviceStatus Run(Stream& stream, Launch launch) override {
    return device_->Run(stream, std::move(launch));
  }
  DeviceStatus Upload(Stream& stream, void*, std::span<const std::span<const std::byte>>,
                      std::shared_ptr<const void>) override {
    if (on_upload) on_upload();
    static_cast<FailingQueue&>(*stream.queue()).failure = {code, "device: an upload failed"};
    return {};
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    return device_->Download(stream, source, bytes);
  }

  DeviceStatus::Code code = DeviceStatus::Code::kFailed;
  std::function<void()> on_upload;

 private:
  const std::unique_ptr<Device> device_;
};

class LaneUploadTest : public LaneTest {
 protected:
  LaneUploadTest() {
    lane_.reset();
    auto device =
        std::make_unique<FailingUploads>(*NewCpuDevice({.threads = 1, .poison_memory = true}));
    device_ = device.get();
    engine_ = EngineOn(std::move(device));
    LimitSeconds(0);
  }

  FailingUploads* device_ = nullptr;
};

// Regression: each was answered OK, computed from memory that was never written.
TEST_F(LaneUploadTest, AFailedUploadIsTheAnswerOfEveryTaskOfItsBatch) {
  Run(MakePuppet("a", 1), MakePuppet("b", 2));
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(answers_[name].status, absl::InternalError("device: an upload failed")) << name;
    EXPECT_EQ(answers_[name].count, 1) << name;
  }
  EXPECT_THAT(puppet_.batches, IsEmpty());
  EXPECT_EQ(lane_->input_bytes(), 0);
}

TEST_F(LaneUploadTest, AnUploadThatWasStoppedIsAnsweredWithWhatStoppedIt) {
  device_->code = DeviceStatus::Code::kStopped;
  device_->on_upload = [&] { clock_.Advance(10ms); };
  std::unique_ptr<Task> task = MakePuppet("a", 1);
  task->deadline = clock_.Now() + 5ms;
  Run(std::move(task));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answers_["a"].status)) << answers_["a"].status;
  EXPECT_THAT(puppet_.batches, IsEmpty());
}

}  // namespace
}  // namespace attnd
