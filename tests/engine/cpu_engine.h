// An engine on the processor.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/engine/engine.h"

namespace attnd {

inline std::unique_ptr<Engine> EngineOn(std::unique_ptr<Device> device,
                                        const EngineOptions& options = {}) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::move(device));
  return std::make_unique<Engine>(std::move(devices), options);
}

// Aborts if the machine lacks the instruction set.
inline std::unique_ptr<Engine> CpuEngine(const CpuOptions& cpu, const EngineOptions& options = {}) {
  return EngineOn(*NewCpuDevice(cpu), options);
}

}  // namespace attnd
