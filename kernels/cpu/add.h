// Elementwise addition and the copy of payloads: Backend::Add and Backend::Gather.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace attnd {

class CpuBackend;

[[nodiscard]] absl::Status CpuAdd(CpuBackend& backend, Stream& stream,
                                  std::span<const AddProblem> problems);
[[nodiscard]] absl::Status CpuGather(CpuBackend& backend, Stream& stream, void* destination,
                                     std::span<const std::span<const std::byte>> spans);

}  // namespace attnd
