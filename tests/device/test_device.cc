#include "tests/device/test_device.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "tests/device/strict_device.h"
#include "tests/plain/plain_device.h"

namespace attnd::testing {
namespace {

CpuOptions TwoThreads() { return {.threads = 2, .retain_bytes = 0, .poison_memory = true}; }

// From the first element of a view to the last one, gaps of its strides included.
size_t BytesSpanned(const View& view) {
  if (!view.given() || view.shape.size() == 0) return 0;
  int64_t last = 0;
  for (int i = 0; i < view.shape.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
  return static_cast<size_t>((last + 1) * SizeOf(view.dtype));
}

}  // namespace

std::unique_ptr<Device> NewTestDevice(const std::string& name) {
  if (name == "plain") return std::make_unique<PlainDevice>();
  return name == "strict" ? *NewStrictDevice({.cpu = TwoThreads()}) : *NewCpuDevice(TwoThreads());
}

Tensor ToDevice(Stream& stream, const Tensor& host) {
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < host.size(); ++p) {
    View view = host[p];
    const auto* begin = view.As<const std::byte>();
    const auto bytes =
        std::make_shared<const std::vector<std::byte>>(begin, begin + BytesSpanned(view));
    const std::span<const std::byte> pieces[] = {*bytes};
    auto buffer =
        stream.device().memory().Allocate(static_cast<int64_t>(bytes->size()), stream.queue());
    const DeviceStatus status = stream.device().Upload(stream, buffer->data(), pieces, bytes);
    EXPECT_TRUE(status.ok()) << status.text();
    view.data = buffer->data();
    views.push_back(view);
    buffers.push_back(std::move(buffer));
  }
  return Tensor(std::move(views), std::move(buffers));
}

Tensor ToHost(Stream& stream, const Tensor& on_device) {
  static BufferPool& host = *new BufferPool(/*retain_bytes=*/0, /*poison=*/true);
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < on_device.size(); ++p) {
    View view = on_device[p];
    const size_t bytes = BytesSpanned(view);
    auto buffer = host.Allocate(static_cast<int64_t>(bytes));
    const DeviceStatus status = stream.device().Download(
        stream, view.data, {static_cast<std::byte*>(buffer->data()), bytes});
    EXPECT_TRUE(status.ok()) << status.text();
    view.data = buffer->data();
    views.push_back(view);
    buffers.push_back(std::move(buffer));
  }
  const DeviceStatus status = stream.Wait();
  EXPECT_TRUE(status.ok()) << status.text();
  return Tensor(std::move(views), std::move(buffers));
}

}  // namespace attnd::testing
