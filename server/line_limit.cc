#include "server/line_limit.h"

#include <chrono>

namespace attnd {

bool LineLimit::Allow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  if (second_.exchange(second) != second) lines_.store(0);
  return lines_.fetch_add(1) < kLinesPerSecond;
}

}  // namespace attnd
