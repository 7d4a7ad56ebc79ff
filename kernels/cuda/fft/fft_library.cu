#include "kernels/cuda/fft/fft_library.cuh"

#include <algorithm>
#include <cmath>

#include "kernels/core/integer.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/fft/fft_library.h"

namespace attnd::cuda {
namespace {

// Elements of a matrix from which on its own launches take a device longer than they take the host:
// 2^21 at some 30 bytes an element are 20 us at 3 TB/s. An estimate: no device has been measured.
constexpr int64_t kLeastElements = int64_t{1} << 21;
// One call is no longer than a slice: 2^27 such elements take 1.3 ms. Tables of a side are bounded,
// too.
constexpr int64_t kMostElements = int64_t{1} << 27, kMostLength = int64_t{1} << 20;
// The largest prime factor of a length that cuFFT sums directly. Beyond, it convolves, as own
// kernels do, and with plans that some versions cannot use twice.
constexpr int64_t kLargestPrime = 127;

bool HasLargePrime(int64_t n) {
  for (int64_t prime = 2; prime <= kLargestPrime; ++prime) {
    while (n % prime == 0) n /= prime;
  }
  return n > 1;
}

// The bytes between the first matrix of a view and that of number `matrix`.
int64_t OffsetOf(const View& view, int64_t matrix) {
  int64_t elements = 0;
  for (int i = view.shape.rank - 3; i >= 0; --i) {
    elements += matrix % view.shape[i] * view.stride[i];
    matrix /= view.shape[i];
  }
  return elements * SizeOf(view.dtype);
}

FftCopy CopyOf(const View& view, int64_t matrix, void* spectrum) {
  const int rank = view.shape.rank;
  FftCopy copy{.dtype = view.dtype,
               .row = view.stride[rank - 2],
               .column = view.stride[rank - 1],
               .N = static_cast<int>(view.shape[rank - 2]),
               .M = static_cast<int>(view.shape[rank - 1]),
               .by_row = Divider(view.shape[rank - 1]),
               .spectrum = static_cast<FftComplex*>(spectrum)};
  // A dry stream may have no memory.
  if (spectrum != nullptr) copy.data = view.As<std::byte>() + OffsetOf(view, matrix);
  return copy;
}

}  // namespace

int64_t LibraryFfts::Transform::spectrum_bytes() const {
  return RoundUp(N * (M / 2 + 1) * static_cast<int64_t>(sizeof(FftComplex)),
                 Cufft::kWorkspaceAlign);
}

// Planned before there is a plan: one that takes more than its data is not used.
int64_t LibraryFfts::Transform::workspace_bytes() const { return spectrum_bytes(); }

bool LibraryFfts::Take(const FftProblem& p) {
  if (device_.cufft() == nullptr || p.x.shape.size() == 0) return false;
  const int rank = p.x.shape.rank;
  const int64_t N = p.x.shape[rank - 2], M = p.x.shape[rank - 1];
  if (N > kMostLength || M > kMostLength || N * M < kLeastElements || N * M > kMostElements) {
    return false;
  }
  // With one pass a side own kernels move 12 bytes an element of float32, which is less than
  // half of what the library and the kernels around it move.
  if (FftLength(N).passes() == 1 && FftLength(M).passes() == 1) return false;
  if (HasLargePrime(N) || HasLargePrime(M)) return false;
  transforms_.push_back({&p, N, M, p.x.shape.size() / (N * M), nullptr});
  return true;
}

DeviceStatus LibraryFfts::Run(int64_t own_bytes, std::vector<FftProblem>* left) {
  // They run one after another, each in the same memory.
  int64_t bytes = 0;
  for (const Transform& transform : transforms_) {
    bytes = std::max(bytes, transform.spectrum_bytes() + transform.workspace_bytes());
  }
  bytes = std::max(bytes + Cufft::kWorkspaceAlign, own_bytes);
  const std::shared_ptr<Buffer> buffer = TakeShared(stream_, Share(bytes));
  if (buffer == nullptr) return NoMemory(stream_);
  auto* const memory =
      stream_.is_dry() ? nullptr
                       : reinterpret_cast<void*>(RoundUp(reinterpret_cast<intptr_t>(buffer->data()),
                                                         Cufft::kWorkspaceAlign));
  bool has_failed = false;
  for (Transform& transform : transforms_) {
    // The library allocates and computes where it makes a plan: not where a request is only
    // planned.
    if (!has_failed && !stream_.is_dry()) {
      transform.plan = device_.cufft()->PlanOf(transform.N, transform.M);
      if (transform.plan == nullptr ||
          Cufft::WorkspaceBytes(*transform.plan) > transform.workspace_bytes()) {
        left->push_back(*transform.problem);
        continue;
      }
    }
    if (!has_failed) {
      DeviceStatus status = RunMatrices(transform, memory, &has_failed);
      if (!status.ok()) return status;
    }
    if (has_failed) left->push_back(*transform.problem);
  }
  return {};
}

DeviceStatus LibraryFfts::RunMatrices(const Transform& t, void* memory, bool* has_failed) {
  const Cuda& cuda = CudaOf(device_);
  const auto elements = static_cast<double>(t.N * t.M);
  const double spectrum = static_cast<double>(t.spectrum_bytes());
  // A pass over the rows and two over the columns, each of which reads and writes.
  const double seconds = cuda.Seconds(5 * elements * std::log2(elements), 6 * spectrum);
  const auto copy = [&](const View& view, int64_t matrix, auto* kernel) {
    ProblemList<FftCopy> list;
    list.Add(CopyOf(view, matrix, memory), DivideUp(t.N * t.M, kFftCopyElements));
    const double bytes = elements * static_cast<double>(SizeOf(view.dtype)) + spectrum;
    const LaunchShape shape = {.threads = kFftCopyThreads, .seconds = cuda.Seconds(0, bytes)};
    return LaunchOver(device_, stream_, shape, kernel, list);
  };
  const Work before = stream_.work();
  for (int64_t matrix = 0; matrix < t.matrices; ++matrix) {
    if (DeviceStatus status = copy(t.problem->x, matrix, FftLoadKernel); !status.ok()) {
      return status;
    }
    if (stream_.stopped()) return {DeviceStatus::Code::kStopped, "run: stopped"};
    if (stream_.is_dry()) {
      stream_.work().seconds += seconds;
    } else {
      CudaQueue& queue = QueueOf(stream_);
      void* const workspace = static_cast<std::byte*>(memory) + t.spectrum_bytes();
      DeviceStatus status = device_.cufft()->Transform(*t.plan, memory, workspace, queue.stream());
      *has_failed = status.code() == DeviceStatus::Code::kDeclined;
      if (*has_failed) return {};
      if (!status.ok()) return status;
      queue.cuda_progress().Add(seconds);
      queue.Hold(t.plan);
    }
    if (DeviceStatus status = copy(t.problem->out, matrix, FftRealKernel); !status.ok()) {
      return status;
    }
    if (stream_.is_dry()) {
      // All matrices are alike.
      stream_.work().Repeat(before, t.matrices);
      return {};
    }
  }
  return {};
}

}  // namespace attnd::cuda
