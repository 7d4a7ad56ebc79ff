// Deals the blocks of a launch out to workers.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "block.h"
#include "kernels.h"
#include "orders.h"

namespace emu {
namespace {

// Blocks that do not run. They keep their stacks: to map those takes longer than most launches.
class BlockPool {
 public:
  std::unique_ptr<Block> Take() {
    const std::lock_guard lock(mu_);
    if (blocks_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(blocks_.back());
    blocks_.pop_back();
    return block;
  }
  void Put(std::unique_ptr<Block> block) {
    const std::lock_guard lock(mu_);
    blocks_.push_back(std::move(block));
  }

 private:
  std::mutex mu_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

BlockPool& Pool() {
  static BlockPool& pool = *new BlockPool;
  return pool;
}

// Block i of the launch's order is the grid's block order[i]; empty: i itself.
std::vector<int64_t> BlockOrder(int64_t blocks) {
  std::vector<int64_t> order;
  if (options.order == Order::kForward) return order;
  order.resize(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  if (options.order == Order::kReverse) {
    std::reverse(order.begin(), order.end());
  } else {
    std::shuffle(order.begin(), order.end(), std::minstd_rand(options.seed));
  }
  return order;
}

Counters RunOnce(const LaunchShape& shape, const std::function<void()>& thread_body) {
  const dim3 g = shape.grid;
  const int64_t blocks = int64_t{g.x} * g.y * g.z;
  const std::vector<int64_t> order = BlockOrder(blocks);
  const int workers = static_cast<int>(std::clamp<int64_t>(options.workers, 1, blocks));
  // Locks before the first block and after the last one: they must not order the workers' accesses
  // for the thread sanitizer.
  std::vector<std::unique_ptr<Block>> runners;
  for (int i = 0; i < workers; ++i) runners.push_back(Pool().Take());
  const auto work = [&](int worker) {
    Block& block = *runners[static_cast<size_t>(worker)];
    block.body = &thread_body;
    block.random.seed(options.seed + static_cast<uint64_t>(worker));
    for (int64_t i = worker; i < blocks; i += workers) {
      const auto id = static_cast<uint64_t>(order.empty() ? i : order[static_cast<size_t>(i)]);
      block.Run(shape, {static_cast<unsigned>(id % g.x), static_cast<unsigned>(id / g.x % g.y),
                        static_cast<unsigned>(id / g.x / g.y)});
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < workers; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  Counters counters{.launches = 1};
  for (std::unique_ptr<Block>& block : runners) {
    counters += std::exchange(block->counters, {});
    Pool().Put(std::move(block));
  }
  return counters;
}

}  // namespace

void RunLaunch(const LaunchShape& shape, const std::function<void()>& thread_body) {
  Counters counters;
  RunInOrders(shape, [&] {
    const Counters counted = RunOnce(shape, thread_body);
    if (counters.launches == 0) counters = counted;
  });
  AddCounters(counters);
  if (shape.kernel != nullptr) CountLaunch(shape);
}

}  // namespace emu
