// What memory holds that no one has written.
#pragma once

#include <cstddef>
#include <cstring>
#include <cwchar>

namespace emu {

// NaN in every float type and, as a number of a row, beyond every array: -1, which has all bits
// set, is what kernels take for none. `data` is aligned to four bytes.
inline void Poison(void* data, size_t bytes) {
  constexpr wchar_t kPattern = 0x7fff7fff;
  static_assert(sizeof(wchar_t) == 4);
  const size_t words = bytes / sizeof(wchar_t);
  std::wmemset(static_cast<wchar_t*>(data), kPattern, words);
  std::memset(static_cast<wchar_t*>(data) + words, 0xff, bytes % sizeof(wchar_t));
}

}  // namespace emu
