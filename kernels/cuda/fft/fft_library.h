// Which transforms the library of a device computes, and how it is asked to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/cufft.h"
#include "kernels/device/fft.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class CudaDevice;

// The problems of a launch that the library computes, each matrix of their leading dimensions
// alone.
class LibraryFfts {
 public:
  LibraryFfts(CudaDevice& device, Stream& stream) : device_(device), stream_(stream) {}

  // False: own kernels compute it. What decides is N and M. `problem` must stay until
  // Run has returned.
  bool Take(const FftProblem& problem);
  bool empty() const { return transforms_.empty(); }

  // Asks the stream for all of them. Those at which the library fails, or for which it has no plan
  // that takes as little memory as was planned, are added to `left`.
  // `own_bytes`: of the workspace that own kernels need for the whole launch: it is planned, as
  // they may have to serve. On a dry stream counts memory and predicts.
  DeviceStatus Run(int64_t own_bytes, std::vector<FftProblem>* left);

 private:
  struct Transform {
    const FftProblem* problem;
    int64_t N, M, matrices;
    std::shared_ptr<Cufft::Plan> plan;  // null on a dry stream

    int64_t spectrum_bytes() const;
    // The most that the library may take beside it.
    int64_t workspace_bytes() const;
  };
  DeviceStatus RunMatrices(const Transform& transform, void* memory, bool* has_failed);

  CudaDevice& device_;
  Stream& stream_;
  std::vector<Transform> transforms_;
};

}  // namespace attnd::cuda
