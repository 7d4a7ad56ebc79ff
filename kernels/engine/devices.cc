// The only function of its file, so that a program may link other devices in its place.
#include "kernels/engine/devices.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/core/status.h"
#include "kernels/engine/self_test.h"

namespace attnd {
namespace {

void AddLine(const std::string& line, std::string* lines) {
  absl::StrAppend(lines, lines->empty() ? "" : "; ", line);
}

// The device if it agrees with the processor, without the primitives that do not. Null: it is of no
// use. `why` gets what was found.
std::unique_ptr<Device> Proven(std::unique_ptr<Device> device, const DeviceOptions& options,
                               Device& reference, std::string* why) {
  const std::string name = device->info().name;
  const SelfTestReport report = SelfTest(*device, reference);
  for (const SelfTestRow& row : report.rows) {
    if (row.failure.empty()) continue;
    AddLine(absl::StrCat(name, ": ", row.primitive, " of ", row.dtype,
                         " is switched off: ", row.failure),
            why);
  }
  if (!report.status.ok()) AddLine(absl::StrCat(name, ": ", report.status.message()), why);
  if (report.is_unusable || !report.status.ok()) return nullptr;
  if (report.failed.empty()) return device;
  int ordinal = 0;
  static_cast<void>(absl::SimpleAtoi(absl::StripPrefix(name, "cuda:"), &ordinal));
  CudaOptions rest = options.cuda;
  rest.devices = {ordinal};
  rest.declined = report.failed;
  device = nullptr;
  CudaDevices again = NewCudaDevices(rest);
  return again.devices.empty() ? nullptr : std::move(again.devices[0]);
}

}  // namespace

absl::StatusOr<Devices> NewDevices(const DeviceOptions& options) {
  using Kinds = DeviceOptions::Kinds;
  Devices devices;
  if (options.kinds != Kinds::kCuda) {
    absl::StatusOr<std::unique_ptr<Device>> processor = NewCpuDevice(options.cpu);
    ATTND_RETURN_IF_ERROR(processor.status());
    devices.list.push_back(*std::move(processor));
  }
  if (options.kinds == Kinds::kCpu) return devices;
  CudaDevices cuda = NewCudaDevices(options.cuda);
  const bool lacks_named = !options.cuda.devices.empty() && !cuda.why_not.empty();
  if (options.kinds == Kinds::kCuda && (cuda.devices.empty() || lacks_named)) {
    return absl::UnavailableError(cuda.why_not);
  }
  devices.note = std::move(cuda.why_not);
  std::unique_ptr<Device> reference;
  for (std::unique_ptr<Device>& device : cuda.devices) {
    if (options.proves_cuda) {
      if (reference == nullptr) {
        absl::StatusOr<std::unique_ptr<Device>> processor = NewCpuDevice(options.cpu);
        ATTND_RETURN_IF_ERROR(processor.status());
        reference = *std::move(processor);
      }
      device = Proven(std::move(device), options, *reference, &devices.note);
    }
    if (device != nullptr) devices.list.push_back(std::move(device));
  }
  const bool lacks_proven =
      options.kinds == Kinds::kCuda && devices.list.size() < options.cuda.devices.size();
  if (devices.list.empty() || lacks_proven) return absl::UnavailableError(devices.note);
  return devices;
}

}  // namespace attnd
