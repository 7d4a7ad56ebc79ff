// What is said in several places when new work is refused.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attnd {

// UNAVAILABLE: of a request, and of a stream that is not one of requests.
absl::Status DrainingStatus();
absl::Status StreamDrainingStatus();

// RESOURCE_EXHAUSTED: `what` says more than that `most` requests wait, ", a client with fewer ..".
absl::Status QueueFullStatus(int64_t most, absl::string_view what = "");

}  // namespace attnd
