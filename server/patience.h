// How long a message may be on its way, in either direction.
#pragma once

#include <chrono>
#include <cstdint>

namespace attnd {

// Who lets it wait longer holds a part of the byte budget by doing nothing. `is_short`: while
// others find no room.
inline std::chrono::seconds Patience(int64_t bytes, bool is_short) {
  return is_short ? std::chrono::seconds(5 + (bytes >> 22))
                  : std::chrono::seconds(30 + (bytes >> 20));
}

}  // namespace attnd
