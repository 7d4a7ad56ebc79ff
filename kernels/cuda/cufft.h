// NVIDIA's cuFFT for transforms of real matrices, as a device uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kernels/core/mutex.h"
#include "kernels/cuda/library.h"
#include "kernels/device/status.h"

namespace attnd::cuda {

namespace cufft {
struct Functions;
}

// The library of one device. Each matrix is transformed alone, by the plan of its size, so that its
// bits depend on nothing else. Thread safe: a plan has one stream and one work area at a time, and
// is locked while it is asked.
class Cufft final : public Library {
 public:
  static constexpr int64_t kWorkspaceAlign = 256;
  // Plans that are kept; beyond, the one that was not used for longest ends, which waits for the
  // device (it frees its tables). Their tables lie beside the memory budget, in the tenth of the
  // memory that it leaves.
  static constexpr size_t kMostPlans = 32;
  static constexpr int64_t kMostTableBytes = int64_t{64} << 20;

  class Plan;

  // For the current device. Null, with *why_not set: there is none. `warn`: of Library.
  static std::unique_ptr<Cufft> Open(Warn warn, std::string* why_not);
  ~Cufft() override;

  std::string name() const override;
  // How to transform matrices [N,M]. Null: the library does not, or has failed.
  std::shared_ptr<Plan> PlanOf(int64_t N, int64_t M);
  static int64_t WorkspaceBytes(const Plan& plan);

  // Asks the stream for a transform in place: `matrix` has rows of 2 (M/2 + 1) float32, of which M
  // are those of the matrix, and gets rows of M/2 + 1 complex numbers. `workspace` is for it alone.
  // The plan must live until the stream is done. Declined: the library has failed, and nothing of
  // use was asked for. Other errors are those of the stream.
  DeviceStatus Transform(Plan& plan, void* matrix, void* workspace, cudaStream_t stream);

 private:
  using Size = std::pair<int64_t, int64_t>;
  struct Kept {
    std::shared_ptr<Plan> plan;  // null: the library does not transform it
    int64_t table_bytes = 0;
    int64_t last_use = 0;
  };

  Cufft(std::shared_ptr<const cufft::Functions> functions, int device, Warn warn);
  std::shared_ptr<Plan> NewPlan(int64_t N, int64_t M) const;
  bool Find(const Size& size, std::shared_ptr<Plan>* plan);

  const std::shared_ptr<const cufft::Functions> functions_;
  const int device_;  // the current one of every call
  Mutex making_;      // held while a plan is made
  Mutex mu_;
  std::map<Size, Kept> plans_ ATTND_GUARDED_BY(mu_);
  int64_t table_bytes_ ATTND_GUARDED_BY(mu_) = 0, uses_ ATTND_GUARDED_BY(mu_) = 0;
};

}  // namespace attnd::cuda
