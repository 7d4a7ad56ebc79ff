#include "tests/plain/plain_device.h"

#include <algorithm>
#include <variant>

#include "tests/plain/plain.h"

namespace attnd::testing {

void PlainRun(const Launch& launch) {
  std::visit([](const auto& args) { PlainRun(args); }, launch);
}

DeviceStatus PlainDevice::Run(Stream& stream, Launch launch) {
  if (stream.is_dry()) {
    stream.work().seconds += 1e-6;
    return {};
  }
  const bool is_attend = std::holds_alternative<AttendArgs>(launch);
  const bool is_attend_grad = std::holds_alternative<AttendGradArgs>(launch);
  const bool is_scan = std::holds_alternative<ScanArgs>(launch);
  const bool is_scan_grad = std::holds_alternative<ScanGradArgs>(launch);
  calls_.attend += is_attend ? 1 : 0;
  calls_.attend_grad += is_attend_grad ? 1 : 0;
  calls_.scan += is_scan ? 1 : 0;
  calls_.scan_grad += is_scan_grad ? 1 : 0;
  calls_.other += is_attend || is_attend_grad || is_scan || is_scan_grad ? 0 : 1;
  PlainRun(launch);
  return {};
}

DeviceStatus PlainDevice::Upload(Stream& stream, void* destination,
                                 std::span<const std::span<const std::byte>> spans,
                                 std::shared_ptr<const void>) {
  if (stream.is_dry()) return {};
  auto* to = static_cast<std::byte*>(destination);
  for (const auto& span : spans) to = std::copy(span.begin(), span.end(), to);
  return {};
}

DeviceStatus PlainDevice::Download(Stream& stream, const void* source, std::span<std::byte> bytes) {
  if (stream.is_dry()) return {};
  std::copy_n(static_cast<const std::byte*>(source), bytes.size(), bytes.data());
  return {};
}

}  // namespace attnd::testing
