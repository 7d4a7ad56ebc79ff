// MatMul on a CUDA device: one launch for each dtype and size of tile that a list has, and one that
// adds up sums that were cut.
#include "kernels/cuda/matmul/matmul.cuh"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/matmul/matmul_launch.h"
#include "kernels/cuda/matmul/matmul_library.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// Products of float32 are three of TF32, which take twice the time of 16-bit ones.
constexpr double kProductsOfFloat = 6;
// Of a step, whatever it computes: it waits for a copy from memory, which takes some 1 us, and two
// are under way. Of a chunk that is added: eight are.
constexpr double kStepSeconds = 5e-7, kAddSeconds = 1e-7;

struct Work {
  ProblemList<MatMulTask> list;
  double flops = 0, bytes = 0;
  int64_t longest = 0;  // steps of a block
};

// Of the steps of one block, each a whole tile.
template <class S>
double BlockSeconds(const Cuda& cuda, int64_t steps) {
  const double flops = 2.0 * S::kSize * S::kSize * S::kK * (S::kIs16 ? 1 : kProductsOfFloat);
  const double seconds = flops / (cuda.tensor_flops / cuda.processors);
  return Cuda::kLaunchSeconds + static_cast<double>(steps) * std::max(seconds, kStepSeconds);
}

template <class S>
DeviceStatus LaunchTiles(CudaDevice& device, Stream& stream, Work& work,
                         const MatMulFinish& finish) {
  const Cuda& cuda = CudaOf(device);
  const double products = (S::kIs16 ? 1 : kProductsOfFloat) * work.flops;
  const LaunchShape shape = {
      .threads = S::kThreads,
      .shared_bytes = kMatMulSharedBytes<S>,
      .seconds = std::max(cuda.Seconds(products * cuda.flops / cuda.tensor_flops, work.bytes),
                          BlockSeconds<S>(cuda, work.longest))};
  return LaunchOver(device, stream, shape, MatMulKernel<S>, work.list, finish);
}

template <class T>
DeviceStatus LaunchDtype(CudaDevice& device, Stream& stream, Work (&works)[2],
                         const MatMulFinish& finish) {
  using Small = MatMulShape<T, MatMulTask::kSmall, 2, 2>;
  using Large = MatMulShape<T, MatMulTask::kLarge, 2, 4>;
  if (DeviceStatus status = LaunchTiles<Small>(device, stream, works[0], finish); !status.ok()) {
    return status;
  }
  return LaunchTiles<Large>(device, stream, works[1], finish);
}

double BytesOf(const MatMulProblem& p) {
  return static_cast<double>(p.a.bytes() + p.b.bytes() + p.bias.bytes() + p.multiply.bytes() +
                             p.out.bytes());
}

DeviceStatus LaunchOwn(CudaDevice& device, Stream& stream,
                       const std::vector<MatMulProblem>& problems, const MatMulFinish& finish) {
  std::vector<MatMulTask> tasks;
  int64_t partial_bytes = 0;
  for (const MatMulProblem& p : problems) {
    partial_bytes += ShareOf<float>(tasks.emplace_back(p).partial_floats());
  }
  std::shared_ptr<Buffer> partial;
  if (partial_bytes > 0) {
    partial = TakeShared(stream, partial_bytes);
    if (partial == nullptr) return NoMemory(stream);
  }
  const bool is_real = !stream.is_dry() && partial != nullptr;
  float* next = is_real ? static_cast<float*>(partial->data()) : nullptr;
  Work f32[2], f16[2], bf16[2];
  ProblemList<MatMulTask> cut;
  int64_t most_added = 0;  // chunks, by a thread
  for (size_t i = 0; i < tasks.size(); ++i) {
    MatMulTask& task = tasks[i];
    if (task.chunks > 1) {
      task.partial = next;
      if (is_real) next += task.partial_floats();
      cut.Add(task, task.tiles() * FinishBlocks(task));
      most_added =
          std::max(most_added, kFinishEach * DivideUp(task.chunks, FinishTeam(task.chunks)));
    }
    Work(&works)[2] = task.dtype == DType::kF16 ? f16 : task.dtype == DType::kBF16 ? bf16 : f32;
    Work& work = works[task.tile == MatMulTask::kLarge ? 1 : 0];
    work.list.Add(task, task.tiles() * task.chunks);
    work.flops += task.flops();
    work.longest = std::max(work.longest, task.chunk);
    work.bytes += BytesOf(problems[i]) + 4.0 * static_cast<double>(task.partial_floats());
  }
  if (DeviceStatus status = LaunchDtype<float>(device, stream, f32, finish); !status.ok()) {
    return status;
  }
  if (DeviceStatus status = LaunchDtype<simt::f16>(device, stream, f16, finish); !status.ok()) {
    return status;
  }
  if (DeviceStatus status = LaunchDtype<simt::bf16>(device, stream, bf16, finish); !status.ok()) {
    return status;
  }
  const LaunchShape shape = {
      .threads = kFinishThreads,
      .shared_bytes = kFinishSharedBytes,
      .seconds = std::max(CudaOf(device).Seconds(0, static_cast<double>(partial_bytes)),
                          kAddSeconds * static_cast<double>(most_added))};
  return LaunchOver(device, stream, shape, AddChunksKernel, cut, finish);
}

}  // namespace

DeviceStatus LaunchMatMul(CudaDevice& device, Stream& stream,
                          const std::vector<MatMulProblem>& problems, const MatMulFinish& finish) {
  LibraryProducts by_library(device, stream, finish);
  std::vector<MatMulProblem> own;
  for (const MatMulProblem& problem : problems) {
    if (!by_library.Take(problem)) own.push_back(problem);
  }
  if (DeviceStatus status = by_library.Run(&own); !status.ok()) return status;
  return LaunchOwn(device, stream, own, finish);
}

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const MatMulArgs& args) {
  return LaunchMatMul(device, stream, args.problems,
                      {.alpha = static_cast<float>(args.alpha),
                       .activates = args.activation.has_value(),
                       .activation = args.activation.value_or(ElementOp::kCopy)});
}

}  // namespace attnd::cuda
