#include "device_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "bad_access.h"
#include "poison.h"
#include "sanitizers.h"

namespace emu {
namespace {

constexpr int64_t kBytes = int64_t{64} << 30;
// Larger arrays are for offsets that 32 bits do not hold: most of one is never touched.
constexpr size_t kMostPoisoned = size_t{1} << 30;

// For the address sanitizer each allocation ends where its bytes end, with a page before the next.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kGap = kPage;
void Show(void* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); }
void Hide(void* data, size_t bytes) { __asan_poison_memory_region(data, bytes); }
#else
constexpr int64_t kGap = 0;
void Show(void*, size_t) {}
void Hide(void*, size_t) {}
#endif

}  // namespace

DeviceMemory& DeviceMemory::Get() {
  static DeviceMemory& memory = *new DeviceMemory;
  return memory;
}

DeviceMemory::DeviceMemory() : pages_(kBytes), begin_(pages_.begin()) {
  free_[0] = kBytes;
  ExplainAccesses(begin_, kBytes);
}

void* DeviceMemory::Allocate(Device* device, size_t bytes) {
  const int64_t wanted = static_cast<int64_t>(bytes);
  const int64_t pages_bytes = (wanted + kPage - 1) / kPage * kPage + kGap;
  const std::lock_guard lock(mu_);
  if (wanted > machine.memory_bytes - device->used_bytes) return nullptr;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < pages_bytes) continue;
    const auto [offset, size] = *it;
    free_.erase(it);
    if (size > pages_bytes) free_[offset + pages_bytes] = size - pages_bytes;
    allocations_[offset] = {device, wanted, pages_bytes, /*retired=*/false};
    device->used_bytes += wanted;
    char* const data = begin_ + offset;
    const int64_t end = offset + pages_bytes, used_before = pages_.used();
    pages_.Use(end);
    if (inside_ > 0) {
      pages_.Open(offset, pages_bytes);
      if (pages_.used() > used_before) pages_.Close(end, pages_.used() - end);
    }
    const auto whole = static_cast<size_t>(pages_bytes);
    Show(data, bytes);
    Hide(data + bytes, whole - bytes);
    return data;
  }
  return nullptr;
}

void DeviceMemory::Poison(void* data, size_t bytes) {
  if (bytes > kMostPoisoned) {
    emu::Poison(data, size_t{1} << 20);
    return;
  }
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  emu::Poison(data, kGap > 0 ? bytes : whole);
}

bool DeviceMemory::Retire(const void* data) {
  const std::lock_guard lock(mu_);
  const auto it = allocations_.find(Offset(data));
  if (it == allocations_.end() || it->second.retired) return false;
  return it->second.retired = true;
}

void DeviceMemory::Free(void* data) {
  const std::lock_guard lock(mu_);
  const int64_t offset = Offset(data);
  const auto allocation = allocations_.find(offset);
  const int64_t size = allocation->second.pages_bytes;
  allocation->second.device->used_bytes -= allocation->second.bytes;
  allocations_.erase(allocation);
  Hide(data, static_cast<size_t>(size));
  pages_.Drop(offset, size);
  if (inside_ > 0) pages_.Close(offset, size);
  auto it = free_.emplace(offset, size).first;
  const auto next = std::next(it);
  if (next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  const auto before = std::prev(it);
  if (before->first + before->second != it->first) return;
  before->second += it->second;
  free_.erase(it);
}

bool DeviceMemory::Holds(const void* data, size_t bytes) {
  const int64_t begin = Offset(data);
  const std::lock_guard lock(mu_);
  auto it = allocations_.upper_bound(begin);
  if (it == allocations_.begin()) return false;
  --it;
  const Allocation& a = it->second;
  return !a.retired && begin + static_cast<int64_t>(bytes) <= it->first + a.bytes;
}

std::vector<DeviceMemory::Piece> DeviceMemory::Pieces() {
  const std::lock_guard lock(mu_);
  std::vector<Piece> pieces;
  for (const auto& [offset, allocation] : allocations_) {
    pieces.push_back({begin_ + offset, static_cast<size_t>(allocation.bytes)});
  }
  return pieces;
}

bool DeviceMemory::IsDevice(const void* data) const {
  return data >= begin_ && data < begin_ + kBytes;
}

void DeviceMemory::GuardGaps(bool closes) {
  for (const auto& [offset, bytes] : free_) {
    const int64_t end = std::min(offset + bytes, pages_.used());
    if (end <= offset) continue;
    if (closes) {
      pages_.Close(offset, end - offset);
    } else {
      pages_.Open(offset, end - offset);
    }
  }
}

void DeviceMemory::Enter(int change) {
  const std::lock_guard lock(mu_);
  const int before = inside_;
  inside_ += change;
  if (before > 0 && inside_ > 0) return;
  if (inside_ > 0) {
    pages_.Show();
    GuardGaps(/*closes=*/true);
  } else {
    GuardGaps(/*closes=*/false);
    pages_.Hide();
  }
}

}  // namespace emu
