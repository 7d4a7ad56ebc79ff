// How fast a CUDA device is, as predictions count it.
#pragma once

#include <cstdint>

namespace attnd::cuda {

class CudaDevice;

// Constant after construction. Rates as the driver's figures give them: predictions, not promises.
struct Cuda {
  int ordinal = 0;           // of the driver
  int processors = 1;        // streaming multiprocessors
  int64_t shared_bytes = 0;  // a block may use
  double flops = 0;          // float32 multiply-adds, FLOP/s
  double tensor_flops = 0;   // products of 16-bit elements by mma.sync, FLOP/s
  double bytes_per_second = 0;
  // Of a launch, until its first block runs.
  static constexpr double kLaunchSeconds = 4e-6;
  // Over the bus, each way.
  static constexpr double kCopyBytesPerSecond = 2e10;

  static double CopySeconds(int64_t bytes) {
    return kLaunchSeconds + static_cast<double>(bytes) / kCopyBytesPerSecond;
  }

  // Of a kernel that computes and moves so much at once.
  double Seconds(double flops_done, double bytes_moved) const {
    const double compute = flops_done / flops, move = bytes_moved / bytes_per_second;
    return kLaunchSeconds + (compute > move ? compute : move);
  }
  // The same of a kernel whose longest block does and moves the last two: a block has one
  // processor, however many others are idle, and that one its share of the rates.
  double Seconds(double flops_done, double bytes_moved, double block_flops,
                 double block_bytes) const {
    const double all = Seconds(flops_done, bytes_moved);
    const double longest = Seconds(processors * block_flops, processors * block_bytes);
    return all > longest ? all : longest;
  }
};

// CudaDevice::cuda() for files of kernels, which only see that class declared: nvcc reads each
// header three times.
const Cuda& CudaOf(const CudaDevice& device);

}  // namespace attnd::cuda
