// How much of the copies of one stream passes while another computes: by events of both.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_queue.h"
#include "kernels/device/host_launch.h"
#include "kernels/device/stream.h"
#include "tests/gpu/bench_case.h"

namespace attnd {
namespace {

constexpr size_t kBytes = size_t{64} << 20;
constexpr double kSeconds = 0.1;  // of each, alone

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// A moment of a stream, in seconds after `origin`.
class Moment {
 public:
  Moment() { Check(cudaEventCreateWithFlags(&event_, cudaEventDefault)); }
  ~Moment() { static_cast<void>(cudaEventDestroy(event_)); }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  void Record(Stream& stream) { Check(cudaEventRecord(event_, cuda::QueueOf(stream).stream())); }
  double After(const Moment& origin) const {
    float milliseconds = 0;
    Check(cudaEventSynchronize(event_));
    Check(cudaEventElapsedTime(&milliseconds, origin.event_, event_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work of one stream, repeated.
class Repeated {
 public:
  Repeated(Device& device, std::function<DeviceStatus(Stream&)> work)
      : stream_(device, &device.memory()), work_(std::move(work)) {
    Alone();  // allocates
    times_ = std::max(1, static_cast<int>(kSeconds / std::max(Alone(), 1e-5)));
  }

  Stream& stream() { return stream_; }
  // All repetitions, and the moments around them.
  void RunBetween(Moment* begin, Moment* end) {
    begin->Record(stream_);
    for (int i = 0; i < times_; ++i) CheckStatus(work_(stream_));
    end->Record(stream_);
    CheckStatus(stream_.Wait());
  }
  double Alone() {
    Moment begin, end;
    RunBetween(&begin, &end);
    return end.After(begin);
  }
  int times() const { return times_; }

 private:
  static void CheckStatus(const DeviceStatus& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "cuda_bench: %s\n", status.text().c_str());
    std::exit(1);
  }

  Stream stream_;
  const std::function<DeviceStatus(Stream&)> work_;
  int times_ = 1;
};

}  // namespace

void MeasureCopies(Device& device, const char* libraries) {
  const Shape shape = {1, 1, 4096, 4096};
  Launch launch = MatMulArgs{.problems = {{.a = NewArray(DType::kBF16, shape),
                                           .b = NewArray(DType::kBF16, shape),
                                           .out = NewArray(DType::kBF16, shape)}}};
  std::vector<HostStretch> memory;
  {
    Stream stream(device, &device.memory());
    if (!MoveToDevice(stream, &launch, &memory).ok() || !stream.Wait().ok()) std::exit(1);
  }
  ForgetArrays();
  const auto buffer = device.memory().Allocate(kBytes);
  std::vector<std::byte> host(kBytes, std::byte{1});
  const std::span<const std::byte> pieces[] = {host};

  Repeated computes(device, [&](Stream& stream) { return device.Run(stream, launch); });
  Repeated copies(device, [&](Stream& stream) {
    return device.Upload(stream, buffer->data(), pieces, nullptr);
  });
  const double computing = computes.Alone(), copying = copies.Alone();
  Moment origin, compute_begin, compute_end, copy_begin, copy_end;
  origin.Record(computes.stream());
  std::thread other([&] { copies.RunBetween(&copy_begin, &copy_end); });
  computes.RunBetween(&compute_begin, &compute_end);
  other.join();
  const double begin = std::min(compute_begin.After(origin), copy_begin.After(origin));
  const double end = std::max(compute_end.After(origin), copy_end.After(origin));
  const double together = end - begin;
  std::printf(
      "{\"case\": \"copies beside matmul 4096 bfloat16\", \"libraries\": %s, \"seconds\": %.6g, "
      "\"tflops\": %.5g, \"gbps\": %.5g, \"hidden\": %.3f}\n",
      libraries, together, 2.0 * 4096 * 4096 * 4096 * computes.times() / together * 1e-12,
      static_cast<double>(kBytes) * copies.times() / together * 1e-9,
      (computing + copying - together) / std::min(computing, copying));
  std::fflush(stdout);
}

}  // namespace attnd
