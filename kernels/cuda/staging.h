// Pinned host memory through which copies between host and device pass.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace attnd::cuda {

// Thread safe.
struct CopiedBytes {
  std::atomic<int64_t> to_device = 0, to_host = 0;
};

// Two slots in turn: while the device copies one, the host fills or empties the other. Belongs to
// one stream, used by one thread at a time. Slots are allocated when first used.
class Staging {
 public:
  static constexpr size_t kSlotBytes = size_t{4} << 20;

  // Adds what it copies to `copied`, which outlives it.
  Staging(cudaStream_t stream, CopiedBytes* copied) : stream_(stream), copied_(copied) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  using GoOn = std::function<bool()>;  // false ends the copy, of which a part is then done

  // Asks the stream for a copy of `pieces`, one after the other, to device memory. All of them have
  // been read when it returns.
  cudaError_t Send(void* device, std::span<const std::span<const std::byte>> pieces,
                   const GoOn& go_on);
  cudaError_t Send(void* device, std::span<const std::byte> bytes);
  // Copies from device memory; `host` is filled when it returns.
  cudaError_t Fetch(std::span<std::byte> host, const void* device, const GoOn& go_on);

 private:
  struct Slot {
    std::byte* data = nullptr;
    cudaEvent_t passed = nullptr;  // of the last copy that used it
    size_t used = 0;
  };
  // Makes room for at least a byte in slots_[current_].
  cudaError_t MakeRoom();
  cudaError_t Open(Slot* slot);

  const cudaStream_t stream_;
  CopiedBytes* const copied_;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
};

}  // namespace attnd::cuda
