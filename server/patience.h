// How long a message may take to arrive or to leave.
#pragma once

#include <chrono>
#include <cstdint>

namespace attnd {

// A message that takes longer is ended, since it holds a part of the byte budget. `is_short`: while
// others find no room.
inline std::chrono::seconds Patience(int64_t bytes, bool is_short) {
  return is_short ? std::chrono::seconds(5 + (bytes >> 22))
                  : std::chrono::seconds(30 + (bytes >> 20));
}

}  // namespace attnd
