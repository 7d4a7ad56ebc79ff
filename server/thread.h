// Threads of the server.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace attnd {

// A thread that runs `f` under this name, as the system shows it: at most 15 characters.
// RESOURCE_EXHAUSTED: no thread could be created.
absl::StatusOr<std::thread> StartThread(std::string name, std::function<void()> f);

}  // namespace attnd
