// Which products the library of a device computes, and how it is asked to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/matmul/matmul_task.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class CudaDevice;

// A problem as the library takes it: each matrix of its leading dimensions alone, in pieces of rows
// that take a slice of time. The pieces follow from the problem's matrix, never from how many there
// are.
struct LibraryProduct {
  const MatMulProblem* problem = nullptr;
  bool by_columns = false;  // elements of out are contiguous along M
  int64_t M = 0, N = 0, K = 0;
  int64_t rows = 0;  // of a piece; the last one may have fewer
  std::shared_ptr<const CublasLt::Plan> piece, last;
};

// The problems of a launch that the library computes.
class LibraryProducts {
 public:
  LibraryProducts(CudaDevice& device, Stream& stream, const MatMulFinish& finish);

  // False: own kernels compute it. What decides is the problem's matrix, M, N, K, the dtypes and
  // strides: large products of 16-bit matrices in plain layouts, and nothing after the sum.
  // `problem` must stay until Run has returned.
  bool Take(const MatMulProblem& problem);
  // Asks the stream for all of them. Those at which the library fails are added to `left`: own
  // kernels that compute these while this object lives take no memory that was not planned. On a
  // dry stream counts memory and predicts.
  DeviceStatus Run(std::vector<MatMulProblem>* left);

 private:
  DeviceStatus Multiply(const LibraryProduct& product, void* workspace, bool* has_failed);

  CudaDevice& device_;
  Stream& stream_;
  const MatMulFinish finish_;
  const bool is_plain_;  // the launch: a library is there, and nothing follows the sum
  std::vector<LibraryProduct> products_;
  std::shared_ptr<Buffer> buffer_;
};

}  // namespace attnd::cuda
