// The memory of the emulated devices: one stretch of addresses that can be touched only while it is
// open, and then only what is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "devices.h"
#include "pages.h"

namespace emu {

// Thread safe.
class DeviceMemory {
 public:
  static DeviceMemory& Get();

  // Aligned to a page; null: the device has no room. `bytes` > 0.
  void* Allocate(Device* device, size_t bytes);
  // Fills a new allocation with poison.h, to its page's end; of one beyond 1 GiB only the first
  // MiB. REQUIRES: the memory is open.
  static void Poison(void* data, size_t bytes);
  // From here on no call may name the allocation that begins at `data`; false: there is none.
  bool Retire(const void* data);
  // Gives a retired allocation back.
  void Free(void* data);

  // Whether the bytes lie in one allocation that is not retired.
  bool Holds(const void* data, size_t bytes);
  // Whether the address is one of a device.
  bool IsDevice(const void* data) const;

  // The allocations that hold something.
  struct Piece {
    char* begin;
    size_t bytes;
  };
  std::vector<Piece> Pieces();

  // Opens the memory while it lives; scopes of several threads may overlap.
  class Scope {
   public:
    explicit Scope(bool opens = true) : change_(opens ? 1 : -1) { Get().Enter(change_); }
    ~Scope() { Get().Enter(-change_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const int change_;
  };

 private:
  struct Allocation {
    Device* device;
    int64_t bytes, pages_bytes;
    bool retired;
  };

  DeviceMemory();
  void Enter(int change);
  // Closes (while the memory is shown) what is not allocated, or opens it again.
  void GuardGaps(bool closes);
  int64_t Offset(const void* data) const { return static_cast<const char*>(data) - begin_; }

  Pages pages_;  // guarded by mu_
  char* const begin_;
  std::mutex mu_;
  // Guarded by mu_: by offset.
  std::map<int64_t, Allocation> allocations_;
  std::map<int64_t, int64_t> free_;
  int inside_ = 0;
};

}  // namespace emu
