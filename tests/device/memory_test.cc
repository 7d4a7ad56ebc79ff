#include "kernels/device/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace attnd {
namespace {

TEST(RoundedBytes, WastesAtMostAnEighth) {
  EXPECT_EQ(RoundedBytes(0), 64);
  EXPECT_EQ(RoundedBytes(64), 64);
  EXPECT_EQ(RoundedBytes(65), 128);
  EXPECT_EQ(RoundedBytes(1024), 1024);
  EXPECT_EQ(RoundedBytes(1025), 1152);
  int64_t last = 0;
  for (int64_t bytes = 1; bytes < (int64_t{1} << 40); bytes += 1 + bytes / 7) {
    const int64_t rounded = RoundedBytes(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded - bytes, std::max<int64_t>(64, bytes / 8));
    EXPECT_EQ(rounded % 64, 0);
    EXPECT_GE(rounded, last);  // monotonic
    EXPECT_EQ(RoundedBytes(rounded), rounded);
    last = rounded;
  }
}

TEST(BufferPool, BuffersAreAlignedAndWritable) {
  BufferPool pool;
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{4097}, int64_t{1} << 20, (int64_t{5} << 20) + 3}) {
    const auto buffer = pool.Allocate(bytes);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_EQ(buffer->bytes(), RoundedBytes(bytes));
    std::memset(buffer->data(), 1, buffer->bytes());
  }
}

TEST(BufferPool, CountsAndReuses) {
  BufferPool pool;
  auto a = pool.Allocate(1000);
  const void* const data = a->data();
  EXPECT_EQ(pool.stats().used_bytes, 1024);
  a.reset();
  EXPECT_EQ(pool.stats().used_bytes, 0);
  EXPECT_EQ(pool.stats().reserved_bytes, 1024);
  a = pool.Allocate(1001);  // the same size class
  EXPECT_EQ(a->data(), data);
  const auto b = pool.Allocate(64);
  const PoolStats stats = pool.stats();
  EXPECT_EQ(stats.used_bytes, 1024 + 64);
  EXPECT_EQ(stats.reserved_bytes, 1024 + 64);
  EXPECT_EQ(stats.peak_bytes, 1024 + 64);
  EXPECT_EQ(stats.allocations, 3);
}

TEST(BufferPool, KeepsNoMoreThanItMayAndDropsTheOldest) {
  BufferPool pool(/*retain_bytes=*/2048);
  auto a = pool.Allocate(1024), b = pool.Allocate(512), c = pool.Allocate(896);
  a.reset();
  b.reset();
  EXPECT_EQ(pool.stats().reserved_bytes, 896 + 1024 + 512);
  c.reset();  // 2432 would be kept: the oldest, a, goes
  EXPECT_EQ(pool.stats().reserved_bytes, 512 + 896);
  pool.Allocate(int64_t{1} << 21).reset();  // larger than all that may be kept
  EXPECT_EQ(pool.stats().reserved_bytes, 512 + 896);
}

TEST(BufferPool, TrimGivesBackWhatLayUnused) {
  BufferPool pool;
  auto a = pool.Allocate(1024), b = pool.Allocate(512);
  a.reset();
  b.reset();
  pool.Trim(/*least=*/0);  // both were in use since the pool was made
  EXPECT_EQ(pool.stats().reserved_bytes, 1024 + 512);
  pool.Allocate(512).reset();
  pool.Trim(0);
  EXPECT_EQ(pool.stats().reserved_bytes, 512);
  pool.Trim(/*least=*/512);
  EXPECT_EQ(pool.stats().reserved_bytes, 512);
  pool.Trim(0);
  EXPECT_EQ(pool.stats().reserved_bytes, 0);
}

TEST(BufferPool, GivesNullWhenMemoryEnds) {
  BufferPool pool;
  pool.Allocate(4096).reset();
  EXPECT_EQ(pool.Allocate(int64_t{1} << 60), nullptr);
  EXPECT_EQ(pool.Allocate(int64_t{1} << 50), nullptr);
  EXPECT_NE(pool.Allocate(4096), nullptr);
  EXPECT_EQ(pool.stats().used_bytes, 0);
}

TEST(BufferPool, PoisonFillsEveryByteEachTime) {
  BufferPool pool(/*retain_bytes=*/int64_t{1} << 20, /*poison=*/true);
  for (int round = 0; round < 2; ++round) {
    const auto buffer = pool.Allocate(100);
    for (int64_t i = 0; i < buffer->bytes(); ++i) {
      ASSERT_EQ(static_cast<unsigned char*>(buffer->data())[i], 0xFF);
    }
    std::memset(buffer->data(), 0, buffer->bytes());
  }
}

TEST(BufferPool, BuffersMayDieOnOtherThreads) {
  BufferPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&pool] {
      for (int i = 0; i < 500; ++i) {
        auto buffer = pool.Allocate(64 * (1 + i % 9));
        std::memset(buffer->data(), i, buffer->bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().used_bytes, 0);
  EXPECT_EQ(pool.stats().allocations, 1500);
}

TEST(Workspace, DryAndRealCountTheSame) {
  BufferPool pool;
  Workspace real(&pool), dry(nullptr);
  EXPECT_FALSE(real.is_dry());
  EXPECT_TRUE(dry.is_dry());
  for (Workspace* workspace : {&real, &dry}) {
    auto a = workspace->Allocate(1000);
    auto b = workspace->Allocate(3000);
    EXPECT_EQ(a->data() == nullptr, workspace->is_dry());
    b.reset();
    b = workspace->Allocate(64);
    EXPECT_EQ(workspace->current_bytes(), 1024 + 64);
    EXPECT_EQ(workspace->peak_bytes(), 1024 + 3072);
  }
}

TEST(Workspace, SharesOfProblemsAddUpToThoseOfTheirList) {
  BufferPool pool;
  Workspace real(&pool), dry(nullptr);
  for (const int64_t share : {64, 128, 576, 1088, 70'016}) {
    for (const int64_t problems : {1, 2, 3, 17, 1000}) {
      const auto one = dry.AllocateShared(share);
      const int64_t of_one = dry.current_bytes();
      dry.Reset();
      const auto all = real.AllocateShared(problems * share);
      EXPECT_EQ(real.current_bytes(), problems * of_one);
      EXPECT_GE(real.current_bytes(), all->bytes());
      real.Reset();
    }
  }
  const auto nothing = dry.AllocateShared(0);
  EXPECT_EQ(dry.current_bytes(), RoundedBytes(0));
}

TEST(Workspace, ResetForgetsWhatIsStillAlive) {
  BufferPool pool;
  Workspace workspace(&pool);
  auto old = workspace.Allocate(1024);
  workspace.Reset();
  EXPECT_EQ(workspace.current_bytes(), 0);
  EXPECT_EQ(workspace.peak_bytes(), 0);
  const auto fresh = workspace.Allocate(64);
  old.reset();
  EXPECT_EQ(workspace.current_bytes(), 64);
  EXPECT_EQ(pool.stats().used_bytes, 64);
}

TEST(Workspace, BuffersOutliveIt) {
  BufferPool pool;
  auto workspace = std::make_unique<Workspace>(&pool);
  auto buffer = workspace->Allocate(100);
  workspace.reset();
  std::memset(buffer->data(), 1, 100);
  buffer.reset();
  EXPECT_EQ(pool.stats().used_bytes, 0);
}

}  // namespace
}  // namespace attnd
