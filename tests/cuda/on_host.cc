#include "tests/cuda/on_host.h"

#include <algorithm>
#include <cstring>

namespace attnd::testing {
namespace {

// Host memory, and where it lies on the device.
struct Stretch {
  std::byte *begin, *end;
  std::shared_ptr<Buffer> buffer;
};

std::byte* EndOf(const View& view) {
  int64_t last = 0;
  for (int i = 0; i < view.shape.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
  return view.As<std::byte>() + (last + 1) * SizeOf(view.dtype);
}

// Those that overlap are one.
std::vector<Stretch> StretchesOf(const Launch& launch) {
  std::vector<Stretch> all;
  ForEachView(launch, [&](const View& view) {
    if (!view.given() || view.shape.size() == 0) return;
    all.push_back({view.As<std::byte>(), EndOf(view), nullptr});
  });
  std::sort(all.begin(), all.end(),
            [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  std::vector<Stretch> apart;
  for (const Stretch& stretch : all) {
    if (!apart.empty() && stretch.begin < apart.back().end) {
      apart.back().end = std::max(apart.back().end, stretch.end);
    } else {
      apart.push_back(stretch);
    }
  }
  return apart;
}

}  // namespace

OnHost::OnHost(std::unique_ptr<Device> inner) : inner_(std::move(inner)), info_(inner_->info()) {
  info_.has_host_memory = true;
}

DeviceStatus OnHost::Run(Stream& stream, Launch launch) {
  BufferPool* const memory = stream.is_dry() ? nullptr : &inner_->memory();
  Stream own(*inner_, memory, stream.control());
  std::vector<Stretch> stretches;
  if (!stream.is_dry()) {
    stretches = StretchesOf(launch);
    for (Stretch& stretch : stretches) {
      const std::span<const std::byte> bytes[] = {{stretch.begin, stretch.end}};
      stretch.buffer = memory->Allocate(stretch.end - stretch.begin, own.queue());
      if (stretch.buffer == nullptr) return {DeviceStatus::Code::kNoMemory, "on host: no memory"};
      DeviceStatus status = inner_->Upload(own, stretch.buffer->data(), bytes, nullptr);
      if (!status.ok()) return status;
    }
    ForEachView(launch, [&](const View& view) {
      if (!view.given() || view.shape.size() == 0) return;
      for (const Stretch& stretch : stretches) {
        if (view.data < stretch.begin || view.data >= stretch.end) continue;
        // The launch is this function's own.
        const_cast<View&>(view).data = static_cast<std::byte*>(stretch.buffer->data()) +
                                       (view.As<std::byte>() - stretch.begin);
        return;
      }
    });
  }
  DeviceStatus status = inner_->Run(own, std::move(launch));
  if (status.code() == DeviceStatus::Code::kDeclined) return status;
  for (const Stretch& stretch : stretches) {
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

DeviceStatus OnHost::Download(Stream&, const void* source, std::span<std::byte> bytes) {
  std::memcpy(bytes.data(), source, bytes.size());
  return {};
}

}  // namespace attnd::testing
