// What NVIDIA's management library reads of a device. It comes with the driver: loaded at run time,
// never linked.
#pragma once

#include <memory>
#include <string>

#include "kernels/device/device.h"

namespace attnd::cuda {

// Thread safe.
class Nvml {
 public:
  // "00000000:3b:00.0", as the library names a device by its place on the bus.
  static std::string BusIdOf(int domain, int bus, int device);

  // Null: there is no library, or no such device in it. The library stays loaded.
  static std::unique_ptr<Nvml> Open(const std::string& bus_id,
                                    const char* library = "libnvidia-ml.so.1");
  ~Nvml();

  DeviceReadings Read() const;
  // "580.65.06"; empty: the library does not tell.
  std::string DriverVersion() const;

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);

  const std::unique_ptr<Functions> functions_;
};

}  // namespace attnd::cuda
