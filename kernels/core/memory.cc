#include "kernels/core/memory.h"

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

namespace attnd {
namespace {

constexpr int64_t kAlignment = 64;
// From here on blocks are mapped of their own, so that freeing them really lowers the resident set.
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
  const int64_t end = (bytes + 4095) & ~int64_t{4095};
  if (head > 0) munmap(begin, head);
  if (slack - head > 0) munmap(begin + head + end, slack - head);
  madvise(begin + head, bytes, MADV_HUGEPAGE);  // a hint: nothing depends on it
  return begin + head;
}

void* SystemAllocate(int64_t bytes) {
  if (bytes >= kTooMuch) return nullptr;
  return bytes >= kMapped ? Map(bytes) : std::aligned_alloc(kAlignment, bytes);
}

void SystemFree(void* data, int64_t bytes) {
  if (bytes >= kMapped) {
    munmap(data, bytes);
  } else {
    std::free(data);
  }
}

}  // namespace

int64_t RoundedBytes(int64_t bytes) {
  if (bytes <= kAlignment) return kAlignment;
  if (bytes >= kTooMuch) return bytes;
  // Eight classes between two powers of two: at most 1/8 is wasted.
  const int64_t octave = int64_t{1} << (std::bit_width(static_cast<uint64_t>(bytes - 1)) - 1);
  const int64_t step = std::max(kAlignment, octave / 8);
  return (bytes + step - 1) / step * step;
}

Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->Release(data_, bytes_);
}

struct BufferPool::Impl {
  struct Kept {
    void* data;
    int64_t age;  // order of release
  };
  std::map<int64_t, std::deque<Kept>> kept;  // by size; the oldest in front
  int64_t kept_bytes = 0;
  int64_t releases = 0;
  PoolStats stats;

  // False: there is no memory to remember it.
  bool Keep(void* data, int64_t bytes) {
    try {
      std::deque<Kept>& blocks = kept[bytes];
      blocks.push_back({data, releases++});
    } catch (const std::bad_alloc&) {
      const auto found = kept.find(bytes);
      if (found != kept.end() && found->second.empty()) kept.erase(found);
      return false;
    }
    kept_bytes += bytes;
    return true;
  }

  // Takes the block out that has been unused for longest. REQUIRES: kept_bytes > 0.
  std::pair<void*, int64_t> TakeOldest() {
    auto oldest = kept.begin();
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      if (it->second.front().age < oldest->second.front().age) oldest = it;
    }
    const std::pair<void*, int64_t> block(oldest->second.front().data, oldest->first);
    oldest->second.pop_front();
    kept_bytes -= block.second;
    if (oldest->second.empty()) kept.erase(oldest);
    return block;
  }
};

BufferPool::BufferPool(int64_t retain_bytes, bool poison)
    : retain_bytes_(retain_bytes), poison_(poison), impl_(std::make_unique<Impl>()) {}

BufferPool::~BufferPool() {
  assert(impl_->stats.used_bytes == 0);
  while (impl_->kept_bytes > 0) {
    const auto [data, bytes] = impl_->TakeOldest();
    SystemFree(data, bytes);
  }
}

std::shared_ptr<Buffer> BufferPool::Allocate(int64_t bytes) {
  const int64_t rounded = RoundedBytes(bytes);
  void* data = nullptr;
  {
    MutexLock lock(&mu_);
    if (auto it = impl_->kept.find(rounded); it != impl_->kept.end()) {
      // The one freed last: its lines may still be in the cache.
      data = it->second.back().data;
      it->second.pop_back();
      if (it->second.empty()) impl_->kept.erase(it);
      impl_->kept_bytes -= rounded;
    }
  }
  if (data == nullptr) data = SystemAllocate(rounded);
  while (data == nullptr) {
    // Other sizes may sit on the memory that is missing here.
    std::pair<void*, int64_t> block;
    {
      MutexLock lock(&mu_);
      if (impl_->kept_bytes == 0 || rounded >= kTooMuch) return nullptr;
      block = impl_->TakeOldest();
    }
    SystemFree(block.first, block.second);
    data = SystemAllocate(rounded);
  }
  {
    MutexLock lock(&mu_);
    PoolStats& stats = impl_->stats;
    stats.used_bytes += rounded;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.used_bytes);
    ++stats.allocations;
  }
  if (poison_) std::memset(data, 0xFF, rounded);
  try {
    return std::make_shared<Buffer>(this, data, rounded);
  } catch (const std::bad_alloc&) {
    Release(data, rounded);
    return nullptr;
  }
}

PoolStats BufferPool::stats() const {
  MutexLock lock(&mu_);
  PoolStats stats = impl_->stats;
  stats.reserved_bytes = stats.used_bytes + impl_->kept_bytes;
  return stats;
}

void BufferPool::Release(void* data, int64_t bytes) {
  // Called by destructors: it gets by without memory.
  std::pair<void*, int64_t> surplus(data, bytes);
  {
    MutexLock lock(&mu_);
    impl_->stats.used_bytes -= bytes;
    if (bytes <= retain_bytes_ && impl_->Keep(data, bytes)) surplus.first = nullptr;
  }
  do {
    if (surplus.first != nullptr) SystemFree(surplus.first, surplus.second);
    MutexLock lock(&mu_);
    surplus.first = nullptr;
    if (impl_->kept_bytes > retain_bytes_) surplus = impl_->TakeOldest();
  } while (surplus.first != nullptr);
}

// Buffers are dropped on any thread, hence the atomics.
struct Workspace::Count {
  std::atomic<int64_t> current = 0;
  std::atomic<int64_t> peak = 0;
};

Workspace::Workspace(BufferPool* pool) : pool_(pool), count_(std::make_shared<Count>()) {}
Workspace::~Workspace() = default;

std::shared_ptr<Buffer> Workspace::Allocate(int64_t bytes) {
  struct Counted {
    Counted(std::shared_ptr<Buffer> b, std::shared_ptr<Count> c)
        : buffer(std::move(b)), count(std::move(c)) {}
    ~Counted() { count->current -= buffer->bytes(); }
    const std::shared_ptr<Buffer> buffer;
    const std::shared_ptr<Count> count;
  };
  std::shared_ptr<Buffer> buffer =
      is_dry() ? std::make_shared<Buffer>(nullptr, nullptr, RoundedBytes(bytes))
               : pool_->Allocate(bytes);
  if (buffer == nullptr) return nullptr;
  const int64_t current = count_->current += buffer->bytes();
  count_->peak = std::max(count_->peak.load(), current);
  Buffer* const raw = buffer.get();
  return {std::make_shared<Counted>(std::move(buffer), count_), raw};
}

int64_t Workspace::current_bytes() const { return count_->current; }
int64_t Workspace::peak_bytes() const { return count_->peak; }
void Workspace::Reset() { count_ = std::make_shared<Count>(); }

}  // namespace attnd
