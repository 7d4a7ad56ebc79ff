#include "kernels/device/host_launch.h"

#include <algorithm>
#include <span>

namespace attnd {
namespace {

bool IsEmpty(const View& view) { return !view.given() || view.shape.size() == 0; }

std::byte* EndOf(const View& view) {
  int64_t last = 0;
  for (int i = 0; i < view.shape.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
  return view.As<std::byte>() + (last + 1) * SizeOf(view.dtype);
}

std::vector<HostStretch> StretchesOf(const Launch& launch) {
  std::vector<HostStretch> all, apart;
  ForEachView(launch, [&](const View& view) {
    if (!IsEmpty(view)) all.push_back({view.As<std::byte>(), EndOf(view), nullptr});
  });
  std::sort(all.begin(), all.end(),
            [](const HostStretch& a, const HostStretch& b) { return a.begin < b.begin; });
  for (const HostStretch& stretch : all) {
    if (!apart.empty() && stretch.begin < apart.back().end) {
      apart.back().end = std::max(apart.back().end, stretch.end);
    } else {
      apart.push_back(stretch);
    }
  }
  return apart;
}

}  // namespace

DeviceStatus MoveToDevice(Stream& stream, Launch* launch, std::vector<HostStretch>* stretches) {
  *stretches = StretchesOf(*launch);
  for (HostStretch& stretch : *stretches) {
    const std::span<const std::byte> bytes[] = {{stretch.begin, stretch.end}};
    Device& device = stream.device();
    stretch.buffer = device.memory().Allocate(stretch.end - stretch.begin, stream.queue());
    if (stretch.buffer == nullptr) {
      return {DeviceStatus::Code::kNoMemory, "host launch: no memory for its views"};
    }
    DeviceStatus status = device.Upload(stream, stretch.buffer->data(), bytes, nullptr);
    if (!status.ok()) return status;
  }
  ForEachView(*launch, [&](const View& view) {
    if (IsEmpty(view)) return;
    const auto holds = [&](const HostStretch& stretch) {
      return view.data >= stretch.begin && view.data < stretch.end;
    };
    const auto found = std::find_if(stretches->begin(), stretches->end(), holds);
    // The launch is the caller's own, which wants its views changed.
    const_cast<View&>(view).data =
        static_cast<std::byte*>(found->buffer->data()) + (view.As<std::byte>() - found->begin);
  });
  return {};
}

}  // namespace attnd
