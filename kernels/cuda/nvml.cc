#include "kernels/cuda/nvml.h"

#include <dlfcn.h>

#include <cstdio>
#include <utility>

namespace attnd::cuda {
namespace {

// As in nvml.h of the toolkit, whose interface is fixed by the suffix of a name.
using Code = int;  // 0: success
using Handle = void*;
struct Utilization {
  unsigned device, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kOfTheChip = 0;  // the sensor of a temperature

// False: the library lacks it.
template <class F>
bool Find(void* library, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

struct Nvml::Functions {
  Code (*init)() = nullptr;
  Code (*shutdown)() = nullptr;
  Code (*by_bus_id)(const char*, Handle*) = nullptr;
  Code (*utilization)(Handle, Utilization*) = nullptr;
  Code (*power)(Handle, unsigned* milliwatts) = nullptr;
  Code (*temperature)(Handle, int sensor, unsigned* celsius) = nullptr;
  Code (*memory)(Handle, Memory*) = nullptr;
  Code (*driver_version)(char* text, unsigned bytes) = nullptr;
  Handle device = nullptr;

  bool FindAll(void* library) {
    return Find(library, "nvmlInit_v2", &init) && Find(library, "nvmlShutdown", &shutdown) &&
           Find(library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus_id) &&
           Find(library, "nvmlDeviceGetUtilizationRates", &utilization) &&
           Find(library, "nvmlDeviceGetPowerUsage", &power) &&
           Find(library, "nvmlDeviceGetTemperature", &temperature) &&
           Find(library, "nvmlDeviceGetMemoryInfo", &memory) &&
           Find(library, "nvmlSystemGetDriverVersion", &driver_version);
  }
};

std::string Nvml::BusIdOf(int domain, int bus, int device) {
  char text[32];
  std::snprintf(text, sizeof(text), "%08x:%02x:%02x.0", static_cast<unsigned>(domain),
                static_cast<unsigned>(bus), static_cast<unsigned>(device));
  return text;
}

std::unique_ptr<Nvml> Nvml::Open(const std::string& bus_id, const char* library) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return nullptr;
  auto functions = std::make_unique<Functions>();
  if (!functions->FindAll(loaded) || functions->init() != 0) return nullptr;
  const bool is_known = functions->by_bus_id(bus_id.c_str(), &functions->device) == 0;
  std::unique_ptr<Nvml> nvml(new Nvml(std::move(functions)));
  return is_known ? std::move(nvml) : nullptr;
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
Nvml::~Nvml() { functions_->shutdown(); }

// A device may not know one of them: a part of a shared device has no utilisation.
DeviceReadings Nvml::Read() const {
  const Functions& nvml = *functions_;
  DeviceReadings readings;
  Utilization utilization;
  if (nvml.utilization(nvml.device, &utilization) == 0) {
    readings.utilisation = utilization.device / 100.0;
  }
  unsigned milliwatts = 0, celsius = 0;
  if (nvml.power(nvml.device, &milliwatts) == 0) readings.power_watts = milliwatts / 1e3;
  if (nvml.temperature(nvml.device, kOfTheChip, &celsius) == 0) {
    readings.temperature_celsius = celsius;
  }
  Memory memory;
  if (nvml.memory(nvml.device, &memory) == 0) {
    readings.memory_used_bytes = static_cast<int64_t>(memory.used);
    readings.memory_total_bytes = static_cast<int64_t>(memory.total);
  }
  return readings;
}

std::string Nvml::DriverVersion() const {
  char text[80] = {};  // what the library asks for
  return functions_->driver_version(text, sizeof(text)) == 0 ? text : "";
}

}  // namespace attnd::cuda
