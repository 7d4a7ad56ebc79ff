// Statuses of refused work that several files use.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attnd {

// UNAVAILABLE: for a request, and for a stream without requests (health, reflection).
absl::Status DrainingStatus();
absl::Status StreamDrainingStatus();

// RESOURCE_EXHAUSTED: `most` requests wait. `what` adds details: ", a client with fewer ...".
absl::Status QueueFullStatus(int64_t most, absl::string_view what = "");

}  // namespace attnd
