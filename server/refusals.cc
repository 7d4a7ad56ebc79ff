#include "server/refusals.h"

#include "absl/strings/str_cat.h"

namespace attnd {

absl::Status DrainingStatus() {
  return absl::UnavailableError("request: the server is draining, send it to another one");
}

absl::Status StreamDrainingStatus() { return absl::UnavailableError("server is draining"); }

absl::Status QueueFullStatus(int64_t most, absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("request: queue is full (", most, " requests)", what, ", retry later"));
}

}  // namespace attnd
