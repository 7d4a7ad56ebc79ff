// NVIDIA's cuBLASLt for products of 16-bit matrices, as a device uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/core/dtype.h"
#include "kernels/core/mutex.h"
#include "kernels/cuda/library.h"

namespace attnd::cuda {

namespace lt {
struct Functions;
}

// D [m,n] = alpha op(A) op(B), op(A) [m,k] and op(B) [k,n]. All matrices are stored by columns; op
// transposes, or does nothing.
struct LtProduct {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_pitch = 0, b_pitch = 0, d_pitch = 0;  // elements between columns
  DType operands = DType::kF16, d = DType::kF16;
  bool transposes_a = false, transposes_b = false;

  auto operator<=>(const LtProduct&) const = default;
};

// The library of one device. Sums are float32, never cut along k, and in an order that follows from
// the LtProduct alone: its algorithm is chosen for that one product, which every call computes
// alone. Thread safe.
class CublasLt final : public Library {
 public:
  // Matrices begin at multiples of it, in bytes.
  static constexpr int64_t kAlign = 16;
  static constexpr int64_t kWorkspaceAlign = 256;
  // The most that an algorithm may take: what NVIDIA recommends for Hopper.
  static constexpr int64_t kMostWorkspaceBytes = int64_t{32} << 20;

  class Plan;

  // For the current device. Null, with *why_not set: there is none. `warn`: of Library.
  static std::unique_ptr<CublasLt> Open(Warn warn, std::string* why_not);
  ~CublasLt() override;

  std::string name() const override;
  // How to compute a product: the same way at every call. Null: the library does not, or has
  // failed.
  std::shared_ptr<const Plan> PlanOf(const LtProduct& product);
  static int64_t WorkspaceBytes(const Plan& plan);

  // Asks the stream for a product. `workspace` is for it alone. False: the library has failed, and
  // nothing was asked for.
  bool Multiply(const Plan& plan, float alpha, const void* a, const void* b, void* d,
                void* workspace, cudaStream_t stream);

 private:
  CublasLt(std::unique_ptr<const lt::Functions> functions, void* handle, int device, Warn warn);
  std::shared_ptr<const Plan> NewPlan(const LtProduct& product) const;

  const std::unique_ptr<const lt::Functions> functions_;
  void* const handle_;
  const int device_;  // the current one of every call
  mutable Mutex mu_;
  // Null: the library does not compute it.
  std::map<LtProduct, std::shared_ptr<const Plan>> plans_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd::cuda
