#include "tests/cuda/on_host.h"

#include <algorithm>
#include <cstring>

#include "kernels/device/host_launch.h"

namespace attnd::testing {

OnHost::OnHost(std::unique_ptr<Device> inner) : inner_(std::move(inner)), info_(inner_->info()) {
  info_.has_host_memory = true;
}

DeviceStatus OnHost::Run(Stream& stream, Launch launch) {
  BufferPool* const memory = stream.is_dry() ? nullptr : &inner_->memory();
  Stream own(*inner_, memory, stream.control());
  own.alike() = stream.alike();
  std::vector<HostStretch> stretches;
  if (!stream.is_dry()) {
    DeviceStatus moved = MoveToDevice(own, &launch, &stretches);
    if (!moved.ok()) return moved;
  }
  DeviceStatus status = inner_->Run(own, std::move(launch));
  if (status.code() == DeviceStatus::Code::kDeclined) return status;
  for (const HostStretch& stretch : stretches) {
    if (!status.ok()) break;
    status = inner_->Download(own, stretch.buffer->data(), {stretch.begin, stretch.end});
  }
  const DeviceStatus waited = own.Wait();
  static_cast<void>(stream.workspace().Allocate(own.workspace().peak_bytes()));
  stream.work().seconds += own.work().seconds;
  stream.work().host_bytes += own.work().host_bytes;
  return status.ok() ? waited : status;
}

DeviceStatus OnHost::Upload(Stream& stream, void* destination,
                            std::span<const std::span<const std::byte>> spans,
                            std::shared_ptr<const void>) {
  if (stream.is_dry()) return {};
  auto* to = static_cast<std::byte*>(destination);
  for (const auto& span : spans) to = std::copy(span.begin(), span.end(), to);
  return {};
}

DeviceStatus OnHost::Download(Stream& stream, const void* source, std::span<std::byte> bytes) {
  if (stream.is_dry()) return {};
  std::memcpy(bytes.data(), source, bytes.size());
  return {};
}

}  // namespace attnd::testing
