// Plans of cuDNN: who waits while one is compiled, and how many there may be. With the emulator's
// stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/core/run_control.h"
#include "kernels/cuda/attend/attend_library.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cudnn.h"
#include "tests/cuda/emulator/cudnn.h"
#include "tests/cuda/large_attention.h"
#include "tests/cuda/with_stand_in.h"

namespace attnd::testing {
namespace {

using ::testing::ElementsAre;

class CudnnPlans : public WithStandIn<emu::cudnn> {
 protected:
  ~CudnnPlans() override { emu::cudnn_compiles = nullptr; }

  cuda::Cudnn& cudnn() { return *static_cast<cuda::CudaDevice&>(device_->inner()).cudnn(); }
  // A shape of a kind, by its number.
  static cuda::DnnAttend Shape(size_t number, int64_t D = 64) {
    return {.D = D, .Dv = 64, .lse_head = static_cast<int64_t>(number)};
  }
  // Asks for so many shapes of a kind.
  void Ask(size_t shapes, int64_t D) {
    for (size_t i = 0; i < shapes; ++i) static_cast<void>(cudnn().PlanOf(Shape(i, D)));
  }
  // Whether the library is to compute it, which compiles what is new.
  bool Takes(const AttentionSizes& sizes) {
    AttendProblem p = LargeAttention(sizes).problem();
    for (View* view : {&p.q, &p.k, &p.v, &p.out, &p.lse}) view->data = nullptr;
    const AttendArgs args{.params = {.scale = LargeAttention::kScale}, .problems = {p}};
    Device& device = device_->inner();
    Stream stream(device, &device.memory());
    return !cuda::LibraryAttention(static_cast<cuda::CudaDevice&>(device), stream, args.params,
                                   cuda::LibraryProblemsOf(args))
                .empty();
  }

  const std::unique_ptr<OnHost> device_ = NewDevice(emu::Cudnn::kRight);
};

// A moment for which another thread waits; some minutes, so that a test fails which would hang.
class Moment {
 public:
  void Come() {
    const MutexLock lock(&mu_);
    has_come_ = true;
    change_.NotifyAll();
  }
  bool Wait() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    const MutexLock lock(&mu_);
    while (!has_come_ && std::chrono::steady_clock::now() < end) change_.WaitUntil(&mu_, end);
    return has_come_;
  }

 private:
  Mutex mu_;
  CondVar change_;
  bool has_come_ ATTND_GUARDED_BY(mu_) = false;
};

// All lanes stood still for the half second that a new shape takes.
TEST_F(CudnnPlans, OtherThreadsAttendWhileOneIsCompiled) {
  LargeAttention known({});
  RunAttention(*device_, {&known});
  const int64_t calls = AttentionLibraryOf(*device_).calls;
  Moment compiling, attended;
  std::atomic<bool> is_in_time = false;
  emu::cudnn_compiles = [&] {
    compiling.Come();
    is_in_time = attended.Wait();
  };
  std::thread lane([&] { EXPECT_TRUE(Takes({.dtype = DType::kBF16})); });
  EXPECT_TRUE(compiling.Wait());
  RunAttention(*device_, {&known});
  attended.Come();
  lane.join();
  EXPECT_TRUE(is_in_time);
  EXPECT_EQ(AttentionLibraryOf(*device_).calls, 2 * calls);
  known.Expect();
}

// A shape has the same bits at every call, so that none may take own kernels meanwhile.
TEST_F(CudnnPlans, ThreadsThatWantTheSameShapeWaitForOnePlan) {
  Moment compiling, asked;
  std::atomic<int> compiled = 0;
  emu::cudnn_compiles = [&] {
    ++compiled;
    compiling.Come();
    EXPECT_TRUE(asked.Wait());
  };
  std::thread first([&] { EXPECT_TRUE(Takes({})); });
  EXPECT_TRUE(compiling.Wait());
  std::thread second([&] {
    asked.Come();
    EXPECT_TRUE(Takes({}));
  });
  first.join();
  second.join();
  EXPECT_EQ(compiled, 1);
}

// A thread that asks for one shape after another has no two turns while others wait.
TEST_F(CudnnPlans, ThreadsHaveTurnsInTheirOrder) {
  Moment compiling, asked;
  std::vector<std::thread::id> order;  // of the threads that compile, one at a time
  emu::cudnn_compiles = [&] {
    if (order.empty()) {
      compiling.Come();
      EXPECT_TRUE(asked.Wait());
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the other one waits
    }
    order.push_back(std::this_thread::get_id());
  };
  std::thread many([&] {
    for (const int64_t D : {64, 72, 80}) EXPECT_TRUE(Takes({.D = D}));
  });
  EXPECT_TRUE(compiling.Wait());
  std::thread one([&] {
    asked.Come();
    EXPECT_TRUE(Takes({.dtype = DType::kBF16}));
  });
  const std::thread::id of_many = many.get_id(), of_one = one.get_id();
  many.join();
  one.join();
  EXPECT_THAT(order, ElementsAre(of_many, of_one, of_many, of_many));
}

// It waited for all that others compile, past its deadline.
TEST_F(CudnnPlans, AStoppedRunWaitsForNoTurn) {
  Moment compiling, left;
  emu::cudnn_compiles = [&] {
    compiling.Come();
    EXPECT_TRUE(left.Wait());
  };
  std::thread first([&] { EXPECT_TRUE(Takes({})); });
  EXPECT_TRUE(compiling.Wait());
  std::thread second([&] {
    RunControl control;
    control.StopAt(RunControl::Clock::now() + std::chrono::milliseconds(50));
    const RunScope scope(&control);
    EXPECT_FALSE(Takes({.D = 72}));
    left.Come();
  });
  first.join();
  second.join();
  // Nobody has its turn.
  EXPECT_TRUE(Takes({.dtype = DType::kBF16}));
}

// A client with 128 shapes of any kind kept all others from the library.
TEST_F(CudnnPlans, AllShapesOfOneKindLeavePlacesToOthers) {
  const AttentionSizes early, other{.D = 72}, late{.Hkv = 8};
  EXPECT_TRUE(Takes(early));
  Ask(2 * cuda::Cudnn::kMostPlans, 64);
  EXPECT_FALSE(Takes(late));
  EXPECT_TRUE(Takes(other));
  // What the library has computed, it computes.
  EXPECT_TRUE(Takes(early));
  EXPECT_THAT(warnings, ElementsAre("cuda:0: cuDNN has no place for more shapes, first of float16 "
                                    "with D 64: own kernels serve new ones until the next start"));
}

// Each costs half a second of a lane, and memory, whatever it computes.
TEST_F(CudnnPlans, NoMoreShapesThanItMayCompile) {
  const AttentionSizes early, late{.dtype = DType::kBF16};
  EXPECT_TRUE(Takes(early));
  for (const int64_t D : {8, 16, 24}) Ask(cuda::Cudnn::kMostPlansOfKind, D);
  EXPECT_FALSE(Takes(late));
  EXPECT_TRUE(Takes(early));
}

// Which requests must ask for.
TEST_F(CudnnPlans, GradientsLeaveTheForwardItsShapes) {
  for (size_t i = 0; i < cuda::Cudnn::kMostPlans; ++i) {
    cuda::DnnAttend gradient = Shape(i, static_cast<int64_t>(8 * (1 + i % 4)));
    gradient.is_gradient = true;
    static_cast<void>(cudnn().PlanOf(gradient));
  }
  EXPECT_TRUE(Takes({}));
}

}  // namespace
}  // namespace attnd::testing
