// What one instruction of a warp costs that reads or writes memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace attnd::testing {

struct WarpAccess {
  int bytes = 0;       // of each lane: 1, 2, 4, 8 or 16, aligned to as much
  unsigned lanes = 0;  // that take part
  std::array<uintptr_t, 32> at{};

  void Add(int lane, uintptr_t address) {
    lanes |= 1u << lane;
    at[static_cast<size_t>(lane)] = address;
  }

  // How many different values `unit_of(address)` has among lanes [begin, end).
  template <class UnitOf>
  int64_t Different(int begin, int end, const UnitOf& unit_of) const {
    std::array<uintptr_t, 32> units;
    auto* last = units.begin();
    for (int i = begin; i < end; ++i) {
      if ((lanes >> i & 1) != 0) *last++ = unit_of(at[static_cast<size_t>(i)]);
    }
    std::sort(units.begin(), last);
    return std::unique(units.begin(), last) - units.begin();
  }

  // Different bytes.
  int64_t Bytes() const {
    return bytes * Different(0, 32, [](uintptr_t a) { return a; });
  }
  // Several lanes, one address.
  bool IsAlike() const {
    return (lanes & (lanes - 1)) != 0 && Different(0, 32, [](uintptr_t a) { return a; }) == 1;
  }
  // Of 32 bytes, which memory moves as a whole.
  int64_t Sectors() const {
    return Different(0, 32, [](uintptr_t a) { return a / 32; });
  }

  // Shared memory serves 32 lanes of 4 bytes at once, 16 of 8, 8 of 16, from 32 banks of 4 bytes,
  // one word a bank at a time; lanes that want the same word get it together.
  struct SharedPasses {
    int64_t taken = 0, least = 0;
  };
  SharedPasses Shared() const {
    SharedPasses passes;
    const int at_once = bytes <= 4 ? 32 : 128 / bytes;
    for (int begin = 0; begin < 32; begin += at_once) {
      std::array<std::array<uintptr_t, 32>, 32> words;
      std::array<size_t, 32> used{};
      for (int i = begin; i < begin + at_once; ++i) {
        if ((lanes >> i & 1) == 0) continue;
        const uintptr_t first = at[static_cast<size_t>(i)] / 4;
        for (uintptr_t word = first; word * 4 < at[static_cast<size_t>(i)] + unsigned(bytes);
             ++word) {
          auto& bank = words[word % 32];
          size_t& count = used[word % 32];
          if (std::find(bank.begin(), bank.begin() + count, word) == bank.begin() + count) {
            bank[count++] = word;
          }
        }
      }
      const size_t most = *std::max_element(used.begin(), used.end());
      passes.taken += static_cast<int64_t>(most);
      passes.least += most > 0 ? 1 : 0;
    }
    return passes;
  }
};

}  // namespace attnd::testing
