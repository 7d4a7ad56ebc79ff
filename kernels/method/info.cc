#include "kernels/method/info.h"

namespace attnd {

absl::string_view Name(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

}  // namespace attnd
