// Buffers of streams whose work runs later: who gets a freed block, and when.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/device/memory.h"

namespace attnd {
namespace {

// The progress of ScriptedQueue.
class ScriptedProgress : public WorkProgress {
 public:
  void Ask() { ++position_; }
  void Pass() { passed_ = position_; }
  void PassAfterTheNextLook() { passes_after_look_ = true; }

  int64_t position() const override { return position_; }
  bool HasPassed(int64_t position) const override {
    const bool has_passed = passed_ >= position;
    if (std::exchange(passes_after_look_, false)) passed_ = position_;
    return has_passed;
  }
  bool WaitFor(int64_t position) override {
    passed_ = std::max(passed_, position);
    return true;
  }

 private:
  int64_t position_ = 0;
  mutable int64_t passed_ = 0;
  mutable bool passes_after_look_ = false;
};

// A queue whose work passes when the test says so.
class ScriptedQueue : public WorkQueue {
 public:
  ~ScriptedQueue() override { progress_->Pass(); }

  void Ask() { progress_->Ask(); }
  void Pass() { progress_->Pass(); }
  void PassAfterTheNextLook() { progress_->PassAfterTheNextLook(); }
  void Fail() { failure_ = {DeviceStatus::Code::kFailed, "scripted"}; }
  bool has_passed() const { return progress_->HasPassed(progress_->position()); }

  std::shared_ptr<WorkProgress> progress() const override { return progress_; }
  DeviceStatus Wait() override {
    Pass();
    return std::exchange(failure_, DeviceStatus());
  }

 private:
  const std::shared_ptr<ScriptedProgress> progress_ = std::make_shared<ScriptedProgress>();
  DeviceStatus failure_;
};

class SmallMemory : public MemorySource {
 public:
  explicit SmallMemory(int64_t bytes) : left_(bytes) {}
  void* Allocate(int64_t bytes) override {
    if (bytes > left_) return nullptr;
    left_ -= bytes;
    return std::aligned_alloc(64, static_cast<size_t>(bytes));
  }
  void Free(void* data, int64_t bytes) override {
    left_ += bytes;
    std::free(data);
  }
  void Fill(WorkQueue*, void*, int64_t, uint8_t) override {}

 private:
  int64_t left_;
};

class PoolQueue : public ::testing::Test {
 protected:
  const std::shared_ptr<ScriptedQueue> a_ = std::make_shared<ScriptedQueue>();
  const std::shared_ptr<ScriptedQueue> b_ = std::make_shared<ScriptedQueue>();
};

TEST_F(PoolQueue, AnotherQueueGetsABlockWhenItsQueueHasPassed) {
  BufferPool pool;
  auto buffer = pool.Allocate(1024, a_);
  const void* const data = buffer->data();
  a_->Ask();
  buffer.reset();
  // The queue itself may have it at once, others may not.
  const auto of_another = pool.Allocate(1024, b_), of_none = pool.Allocate(1024);
  EXPECT_NE(of_another->data(), data);
  EXPECT_NE(of_none->data(), data);
  buffer = pool.Allocate(1024, a_);
  EXPECT_EQ(buffer->data(), data);
  buffer.reset();
  const auto other = pool.Allocate(1024, b_);
  EXPECT_NE(other->data(), data);
  a_->Pass();
  EXPECT_EQ(pool.Allocate(1024, b_)->data(), data);
}

// Kept blocks held the queue of every stream that had ended, a thread or a CUDA stream each.
TEST_F(PoolQueue, AKeptBlockDoesNotKeepAQueue) {
  BufferPool pool;
  auto ended = std::make_shared<ScriptedQueue>();
  const std::weak_ptr<WorkQueue> queue = ended;
  auto buffer = pool.Allocate(1024, ended);
  ended->Ask();
  buffer.reset();
  ended.reset();
  EXPECT_TRUE(queue.expired());
  EXPECT_EQ(pool.stats().reserved_bytes, 1024);
  EXPECT_NE(pool.Allocate(1024, b_), nullptr);
  EXPECT_EQ(pool.stats().reserved_bytes, 1024);
}

// What a pattern keeps in memory of a device held the queue of the stream that had uploaded it.
TEST_F(PoolQueue, ABufferDoesNotKeepAQueue) {
  BufferPool pool;
  auto ended = std::make_shared<ScriptedQueue>();
  const std::weak_ptr<WorkQueue> queue = ended;
  auto buffer = pool.Allocate(1024, ended);
  const void* const data = buffer->data();
  ended->Ask();
  ended.reset();
  EXPECT_TRUE(queue.expired());
  buffer.reset();
  EXPECT_EQ(pool.Allocate(1024, b_)->data(), data);
}

// An allocation took the failure of another lane's stream, which then answered OK with garbage.
TEST_F(PoolQueue, WaitingForMemoryLeavesAFailureToItsStream) {
  BufferPool pool(/*retain_bytes=*/4096, /*poison=*/false, std::make_unique<SmallMemory>(2048));
  auto buffer = pool.Allocate(1024, a_);
  ASSERT_NE(buffer, nullptr);
  a_->Ask();
  a_->Fail();
  buffer.reset();
  EXPECT_NE(pool.Allocate(2048, b_), nullptr);
  EXPECT_TRUE(a_->has_passed());
  EXPECT_EQ(a_->Wait().code(), DeviceStatus::Code::kFailed);
}

// A queue that passed between two looks at its block gave "no memory".
TEST_F(PoolQueue, ABlockThatBecomesFreeDuringTheSearchIsFound) {
  BufferPool pool(/*retain_bytes=*/4096, /*poison=*/false, std::make_unique<SmallMemory>(2048));
  auto buffer = pool.Allocate(1024, a_);
  ASSERT_NE(buffer, nullptr);
  a_->Ask();
  buffer.reset();
  a_->PassAfterTheNextLook();
  EXPECT_NE(pool.Allocate(2048, b_), nullptr);
}

// Only the oldest block of each size was looked at.
TEST_F(PoolQueue, AFreeBlockBehindABusyOneIsFreed) {
  BufferPool pool(/*retain_bytes=*/1024);
  auto busy = pool.Allocate(1024, a_), free = pool.Allocate(1024);
  a_->Ask();
  busy.reset();
  free.reset();
  EXPECT_EQ(pool.stats().reserved_bytes, 1024);
  EXPECT_FALSE(a_->has_passed());
}

TEST_F(PoolQueue, NoMemoryIsTheAnswerWhenAllBlocksAreInUse) {
  BufferPool pool(/*retain_bytes=*/4096, /*poison=*/false, std::make_unique<SmallMemory>(2048));
  const auto held = pool.Allocate(1024, a_);
  auto freed = pool.Allocate(1024, a_);
  a_->Ask();
  freed.reset();
  EXPECT_EQ(pool.Allocate(2048, b_), nullptr);
  EXPECT_NE(pool.Allocate(1024, b_), nullptr);
}

}  // namespace
}  // namespace attnd
