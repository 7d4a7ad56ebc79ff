#include "kernels/device/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <new>

#include "kernels/core/integer.h"

namespace attnd {
namespace {

constexpr int64_t kAlignment = 64;
// From here on each block is a mapping of its own, so that freeing it lowers the resident set.
constexpr int64_t kMapped = int64_t{1} << 20;
// From here on blocks start at a huge page: kernels that stream them miss the TLB 512 times less.
constexpr int64_t kHuge = int64_t{4} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;
// More than any address space holds; RoundedBytes must not overflow on the way to "no memory".
constexpr int64_t kTooMuch = int64_t{1} << 56;

void* Map(int64_t bytes) {
  const int64_t slack = bytes >= kHuge ? kHugePage : 0;
  void* const mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  // Cuts the ends off so that the block starts at a huge page; both cuts are whole pages.
  char* const begin = static_cast<char*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const int64_t head = static_cast<int64_t>(-address & (kHugePage - 1));
  const int64_t end = RoundUp(bytes, 4096);
  if (head > 0) munmap(begin, head);
  if (slack - head > 0) munmap(begin + head + end, slack - head);
  madvise(begin + head, bytes, MADV_HUGEPAGE);  // a hint: nothing depends on it
  return begin + head;
}

class HostMemory : public MemorySource {
 public:
  void* Allocate(int64_t bytes) override {
    if (bytes >= kTooMuch) return nullptr;
    return bytes >= kMapped ? Map(bytes) : std::aligned_alloc(kAlignment, bytes);
  }
  void Free(void* data, int64_t bytes) override {
    if (bytes >= kMapped) {
      munmap(data, bytes);
    } else {
      std::free(data);
    }
  }
  void Fill(WorkQueue*, void* data, int64_t bytes, uint8_t value) override {
    std::memset(data, value, static_cast<size_t>(bytes));
  }
};

}  // namespace

int64_t RoundedBytes(int64_t bytes) {
  if (bytes <= kAlignment) return kAlignment;
  if (bytes >= kTooMuch) return bytes;
  // Eight classes between two powers of two: at most 1/8 is wasted.
  const int64_t octave = int64_t{1} << (std::bit_width(static_cast<uint64_t>(bytes - 1)) - 1);
  const int64_t step = std::max(kAlignment, octave / 8);
  return RoundUp(bytes, step);
}

std::unique_ptr<MemorySource> NewHostMemory() { return std::make_unique<HostMemory>(); }

Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->Release(data_, bytes_, progress_);
}

struct BufferPool::Impl {
  struct Kept {
    void* data;
    int64_t age;  // order of release
    // Work of this queue up to `position` may use it; null: no work does.
    std::shared_ptr<WorkProgress> progress;
    int64_t position;

    bool IsFree() const { return progress == nullptr || progress->HasPassed(position); }
    bool IsFreeFor(const std::shared_ptr<WorkProgress>& other) const {
      return progress == other || IsFree();
    }
  };
  std::map<int64_t, std::deque<Kept>> kept;  // by size; the oldest in front
  int64_t kept_bytes = 0;
  int64_t unused_bytes = 0;  // the least of kept_bytes since the last Trim
  int64_t releases = 0;
  PoolStats stats;

  // False: there is no memory to remember it.
  bool Keep(void* data, int64_t bytes, std::shared_ptr<WorkProgress> progress, int64_t position) {
    try {
      kept[bytes].push_back({data, releases, std::move(progress), position});
      ++releases;
    } catch (const std::bad_alloc&) {
      const auto found = kept.find(bytes);
      if (found != kept.end() && found->second.empty()) kept.erase(found);
      return false;
    }
    kept_bytes += bytes;
    return true;
  }

  // A kept block that the queue of `progress` may use; null: there is none. The one freed last
  // comes first, since its lines may still be in the cache.
  void* Take(int64_t bytes, const std::shared_ptr<WorkProgress>& progress) {
    const auto blocks = kept.find(bytes);
    if (blocks == kept.end()) return nullptr;
    for (auto block = blocks->second.rbegin(); block != blocks->second.rend(); ++block) {
      if (!block->IsFreeFor(progress)) continue;
      void* const data = block->data;
      Erase(blocks, std::prev(block.base()));
      return data;
    }
    return nullptr;
  }

  struct Oldest {
    void* data = nullptr;  // of a free block, no longer kept; null: there is none
    int64_t bytes = 0;
    // Without a free block: the oldest busy one is free when this has passed `position`. Null: none
    // is kept.
    std::shared_ptr<WorkProgress> progress;
    int64_t position = 0;
  };
  // Takes out the free block that has been kept for longest. One look at each block decides: a
  // queue may pass a position at any moment.
  Oldest TakeOldest() {
    auto blocks = kept.end();
    std::deque<Kept>::iterator free;
    const Kept* busy = nullptr;
    for (auto size = kept.begin(); size != kept.end(); ++size) {
      for (auto block = size->second.begin(); block != size->second.end(); ++block) {
        if (block->IsFree()) {
          if (blocks == kept.end() || block->age < free->age) blocks = size, free = block;
          break;  // those behind it are younger
        }
        if (busy == nullptr || block->age < busy->age) busy = &*block;
      }
    }
    if (blocks != kept.end()) {
      const Oldest oldest{.data = free->data, .bytes = blocks->first, .progress = nullptr};
      Erase(blocks, free);
      return oldest;
    }
    if (busy == nullptr) return {};
    return {.progress = busy->progress, .position = busy->position};
  }

 private:
  void Erase(std::map<int64_t, std::deque<Kept>>::iterator blocks,
             std::deque<Kept>::iterator block) {
    kept_bytes -= blocks->first;
    unused_bytes = std::min(unused_bytes, kept_bytes);
    blocks->second.erase(block);
    if (blocks->second.empty()) kept.erase(blocks);
  }
};

BufferPool::BufferPool(int64_t retain_bytes, bool poison, std::unique_ptr<MemorySource> source)
    : retain_bytes_(retain_bytes),
      poison_(poison),
      source_(std::move(source)),
      impl_(std::make_unique<Impl>()) {}

BufferPool::~BufferPool() {
  assert(impl_->stats.used_bytes == 0);
  for (const auto& [bytes, blocks] : impl_->kept) {
    for (const Impl::Kept& block : blocks) source_->Free(block.data, bytes);
  }
}

std::shared_ptr<Buffer> BufferPool::Allocate(int64_t bytes,
                                             const std::shared_ptr<WorkQueue>& queue) {
  const int64_t rounded = RoundedBytes(bytes);
  std::shared_ptr<WorkProgress> progress = queue == nullptr ? nullptr : queue->progress();
  void* data = nullptr;
  {
    MutexLock lock(&mu_);
    data = impl_->Take(rounded, progress);
  }
  if (data == nullptr) data = source_->Allocate(rounded);
  while (data == nullptr) {
    // Kept blocks of other sizes may hold the memory that is missing here.
    Impl::Oldest oldest;
    {
      MutexLock lock(&mu_);
      if (impl_->kept_bytes == 0 || rounded >= kTooMuch) return nullptr;
      oldest = impl_->TakeOldest();
    }
    if (oldest.data != nullptr) {
      source_->Free(oldest.data, oldest.bytes);
    } else {
      // Whether its work failed concerns the stream of that queue alone.
      static_cast<void>(oldest.progress->WaitFor(oldest.position));
    }
    data = source_->Allocate(rounded);
  }
  {
    MutexLock lock(&mu_);
    PoolStats& stats = impl_->stats;
    stats.used_bytes += rounded;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.used_bytes);
    ++stats.allocations;
  }
  if (poison_) source_->Fill(queue.get(), data, rounded, 0xFF);
  try {
    return std::make_shared<Buffer>(this, data, rounded, progress);
  } catch (const std::bad_alloc&) {
    Release(data, rounded, progress);
    return nullptr;
  }
}

PoolStats BufferPool::stats() const {
  MutexLock lock(&mu_);
  PoolStats stats = impl_->stats;
  stats.reserved_bytes = stats.used_bytes + impl_->kept_bytes;
  return stats;
}

void BufferPool::Release(void* data, int64_t bytes, const std::shared_ptr<WorkProgress>& progress) {
  // Destructors call it: it gets by without memory.
  const int64_t last = progress == nullptr ? 0 : progress->position();
  const bool is_pending = progress != nullptr && !progress->HasPassed(last);
  bool is_kept = false;
  {
    MutexLock lock(&mu_);
    impl_->stats.used_bytes -= bytes;
    is_kept = (is_pending || bytes <= retain_bytes_) &&
              impl_->Keep(data, bytes, is_pending ? progress : nullptr, last);
  }
  if (!is_kept) {
    // Without memory to remember it, it is freed as soon as that is safe.
    if (is_pending) static_cast<void>(progress->WaitFor(last));
    source_->Free(data, bytes);
  }
  Shed(retain_bytes_);
}

void BufferPool::Shed(int64_t most) {
  for (;;) {
    Impl::Oldest surplus;
    {
      MutexLock lock(&mu_);
      if (impl_->kept_bytes <= most) return;
      surplus = impl_->TakeOldest();
    }
    if (surplus.data == nullptr) return;
    source_->Free(surplus.data, surplus.bytes);
  }
}

void BufferPool::Trim(int64_t least) {
  int64_t most = 0;
  {
    MutexLock lock(&mu_);
    most = std::max(least, impl_->kept_bytes - impl_->unused_bytes);
  }
  Shed(most);
  MutexLock lock(&mu_);
  impl_->unused_bytes = impl_->kept_bytes;
}

// Buffers are dropped on any thread, hence the atomics.
struct Workspace::Counter {
  std::atomic<int64_t> current = 0;
  std::atomic<int64_t> peak = 0;
};

struct Workspace::Counted {
  Counted(int64_t n, std::shared_ptr<Counter> c) : bytes(n), counter(std::move(c)) {
    const int64_t current = counter->current += bytes;
    counter->peak = std::max(counter->peak.load(), current);
  }
  ~Counted() { counter->current -= bytes; }
  std::shared_ptr<Buffer> buffer;
  const int64_t bytes;
  const std::shared_ptr<Counter> counter;
};

Workspace::Workspace(BufferPool* pool, std::shared_ptr<WorkQueue> queue)
    : pool_(pool), queue_(std::move(queue)), counter_(std::make_shared<Counter>()) {}
Workspace::~Workspace() = default;

std::shared_ptr<Buffer> Workspace::Allocate(int64_t bytes) {
  return AllocateCounted(bytes, RoundedBytes(bytes));
}

std::shared_ptr<Buffer> Workspace::AllocateShared(int64_t bytes) {
  assert(bytes % kAlignment == 0);
  if (bytes >= kTooMuch) return AllocateCounted(bytes, bytes);
  return AllocateCounted(bytes, std::max(kAlignment, bytes / 8 * 9));
}

std::shared_ptr<Buffer> Workspace::AllocateCounted(int64_t bytes, int64_t counted) {
  std::shared_ptr<Buffer> buffer =
      is_dry() ? std::make_shared<Buffer>(nullptr, nullptr, RoundedBytes(bytes), nullptr)
               : pool_->Allocate(bytes, queue_);
  if (buffer == nullptr) {
    refused_bytes_ = bytes;
    return nullptr;
  }
  Buffer* const raw = buffer.get();
  auto owner = std::make_shared<Counted>(counted, counter_);
  owner->buffer = std::move(buffer);
  return {std::move(owner), raw};
}

std::shared_ptr<void> Workspace::Count(int64_t bytes) {
  return std::make_shared<Counted>(bytes, counter_);
}

int64_t Workspace::current_bytes() const { return counter_->current; }
int64_t Workspace::peak_bytes() const { return counter_->peak; }
void Workspace::Reset() { counter_ = std::make_shared<Counter>(); }

}  // namespace attnd
