#include "kernels/cuda/staging.h"

#include <algorithm>
#include <cstring>

namespace attnd::cuda {
namespace {

// Where small copies begin: at lines of the host's caches.
constexpr size_t kAlign = 64;

}  // namespace

Staging::~Staging() {
  for (Slot& slot : slots_) {
    if (slot.passed != nullptr) static_cast<void>(cudaEventDestroy(slot.passed));
    if (slot.data != nullptr) static_cast<void>(cudaFreeHost(slot.data));
  }
}

cudaError_t Staging::Open(Slot* slot) {
  if (slot->data != nullptr) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (slot->passed == nullptr) {
    error = cudaEventCreateWithFlags(&slot->passed, cudaEventBlockingSync | cudaEventDisableTiming);
    if (error != cudaSuccess) {
      slot->passed = nullptr;
      return error;
    }
  }
  void* data = nullptr;
  error = cudaHostAlloc(&data, kSlotBytes, cudaHostAllocDefault);
  if (error == cudaSuccess) slot->data = static_cast<std::byte*>(data);
  return error;
}

cudaError_t Staging::MakeRoom() {
  Slot& slot = slots_[current_];
  if (slot.data != nullptr && slot.used < kSlotBytes) return cudaSuccess;
  if (slot.data != nullptr) {
    const cudaError_t error = cudaEventRecord(slot.passed, stream_);
    if (error != cudaSuccess) return error;
    current_ = 1 - current_;
  }
  Slot& next = slots_[current_];
  const bool is_new = next.data == nullptr;
  cudaError_t error = Open(&next);
  if (error == cudaSuccess && !is_new) error = cudaEventSynchronize(next.passed);
  next.used = 0;
  return error;
}

cudaError_t Staging::Send(void* device, std::span<const std::span<const std::byte>> pieces,
                          const GoOn& go_on) {
  auto* to = static_cast<std::byte*>(device);
  size_t piece = 0, at = 0;
  while (piece < pieces.size()) {
    if (!go_on()) return cudaSuccess;
    cudaError_t error = MakeRoom();
    if (error != cudaSuccess) return error;
    Slot& slot = slots_[current_];
    const size_t begin = slot.used;
    while (piece < pieces.size() && slot.used < kSlotBytes) {
      const size_t bytes = std::min(pieces[piece].size() - at, kSlotBytes - slot.used);
      if (bytes > 0) std::memcpy(slot.data + slot.used, pieces[piece].data() + at, bytes);
      slot.used += bytes;
      at += bytes;
      if (at == pieces[piece].size()) ++piece, at = 0;
    }
    const size_t sent = slot.used - begin;
    slot.used = std::min((slot.used + kAlign - 1) / kAlign * kAlign, kSlotBytes);
    if (sent == 0) continue;
    error = cudaMemcpyAsync(to, slot.data + begin, sent, cudaMemcpyHostToDevice, stream_);
    if (error != cudaSuccess) return error;
    copied_->to_device.fetch_add(static_cast<int64_t>(sent), std::memory_order_relaxed);
    to += sent;
  }
  return cudaSuccess;
}

cudaError_t Staging::Send(void* device, std::span<const std::byte> bytes) {
  const std::span<const std::byte> pieces[] = {bytes};
  return Send(device, pieces, [] { return true; });
}

cudaError_t Staging::Fetch(std::span<std::byte> host, const void* device, const GoOn& go_on) {
  const auto* from = static_cast<const std::byte*>(device);
  struct Part {
    size_t slot = 0, begin = 0, at = 0, bytes = 0;
  };
  Part last;
  const auto take = [&](const Part& part) {
    if (part.bytes == 0) return cudaSuccess;
    const Slot& slot = slots_[part.slot];
    const cudaError_t error = cudaEventSynchronize(slot.passed);
    if (error == cudaSuccess) {
      std::memcpy(host.data() + part.at, slot.data + part.begin, part.bytes);
    }
    return error;
  };
  for (size_t at = 0; at < host.size();) {
    if (!go_on()) break;
    // A part may not end in the slot that the part before it uses: it would wait for its event.
    cudaError_t error = MakeRoom();
    if (error != cudaSuccess) return error;
    Slot& slot = slots_[current_];
    const Part part{current_, slot.used, at, std::min(host.size() - at, kSlotBytes - slot.used)};
    error = cudaMemcpyAsync(slot.data + part.begin, from + at, part.bytes, cudaMemcpyDeviceToHost,
                            stream_);
    if (error != cudaSuccess) return error;
    slot.used = std::min((part.begin + part.bytes + kAlign - 1) / kAlign * kAlign, kSlotBytes);
    error = cudaEventRecord(slot.passed, stream_);
    if (error != cudaSuccess) return error;
    error = take(last);
    if (error != cudaSuccess) return error;
    copied_->to_host.fetch_add(static_cast<int64_t>(part.bytes), std::memory_order_relaxed);
    last = part;
    at += part.bytes;
  }
  return take(last);
}

}  // namespace attnd::cuda
