// Stands in for NVIDIA's management library, libnvidia-ml.so.1, with two devices. The second one
// does not know its utilisation.
#include <cstring>

namespace {

constexpr int kOk = 0, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7;
char devices[2];

}  // namespace

extern "C" {

int nvmlInit_v2() { return kOk; }
int nvmlShutdown() { return kOk; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  // That of every emulated device, and another one.
  const char* const ids[] = {"00000000:00:00.0", "00000000:3b:00.0"};
  for (int i = 0; i < 2; ++i) {
    if (std::strcmp(id, ids[i]) != 0) continue;
    *device = &devices[i];
    return kOk;
  }
  return kNotFound;
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned* percent) {
  if (device == &devices[1]) return kNotSupported;
  percent[0] = 42, percent[1] = 7;
  return kOk;
}

int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 123500;
  return kOk;
}

int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  constexpr char kVersion[] = "580.65.06";
  if (bytes < sizeof(kVersion)) return kInsufficientSize;
  std::memcpy(text, kVersion, sizeof(kVersion));
  return kOk;
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = 61;
  return sensor == 0 ? kOk : kNotSupported;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* bytes) {
  bytes[0] = 8ULL << 30, bytes[1] = 5ULL << 30, bytes[2] = 3ULL << 30;
  return kOk;
}

}  // extern "C"
