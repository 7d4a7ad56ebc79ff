// NVIDIA's cuDNN for attention of 16-bit queries, keys and values, as a device uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "kernels/core/dtype.h"
#include "kernels/core/mutex.h"
#include "kernels/cuda/library.h"

namespace attnd::cuda {

namespace dnn {
struct Functions;
}

// Elements between the heads and between the rows of a tensor [H,N,D] whose rows are contiguous.
struct DnnRows {
  int64_t head = 0, row = 0;
  auto operator<=>(const DnnRows&) const = default;
};

// out [H,Nq,Dv] = softmax(scale q k^T) v of one sequence: q [H,Nq,D], k [Hkv,Nk,D], v [Hkv,Nk,Dv].
// Or its gradients dq, dk, dv, of the shapes of q, k, v, from out, lse and dout; then H == Hkv.
struct DnnAttend {
  bool is_gradient = false;
  DType dtype = DType::kF16;  // of all but lse
  int64_t H = 0, Hkv = 0, Nq = 0, Nk = 0, D = 0, Dv = 0;
  DnnRows q, k, v, out;
  DnnRows dout, dq, dk, dv;  // of a gradient
  int64_t lse_head = 0;      // elements between heads of lse, whose rows are contiguous
  bool is_bounded_before = false, is_bounded_after = false;

  auto operator<=>(const DnnAttend&) const = default;
};

// What a call computes with. Row i sees the keys i - before to i + after, where they are bounded.
struct DnnCall {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr;               // of a gradient only read
  const void* dout = nullptr;                        // of a gradient
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;  // likewise
  float scale = 1;
  int64_t before = 0, after = 0;
};

// The library of one device. Sums are float32, and bits follow from the DnnAttend and the call
// alone: engine and knobs are chosen for that one sequence, which every call computes alone. But
// those of gradients vary: engines add to dq in any order. Thread safe.
class Cudnn final : public Library {
 public:
  // Tensors begin at multiples of it, in bytes, and so do their rows.
  static constexpr int64_t kAlign = 16;
  static constexpr int64_t kWorkspaceAlign = 256;
  // The most that an engine may take. Those that do not split the keys of a row take 256 bytes.
  static constexpr int64_t kMostEngineBytes = int64_t{1} << 20;

  class Plan;

  // For the current device. Null, with *why_not set: there is none. `warn`: of Library.
  static std::unique_ptr<Cudnn> Open(Warn warn, std::string* why_not);
  ~Cudnn() override;

  std::string name() const override;
  // Each plan compiles a kernel for half a second, once for the life of the process: so many may be
  // of either direction, and so many of these of one kind (dtype and columns), so that all lengths
  // of one model leave places to others. None makes room for another one: where shapes come in turn
  // that are more than there are places, each call would compile.
  static constexpr size_t kMostPlans = 512, kMostPlansOfKind = 256;
  // How to compute it: the same way at every call. Null: the library does not compute it, has
  // failed, or has given its places to others, or the run was stopped while it waited. It compiles
  // what is new, one shape at a time: threads that ask for another new one, or for the same, have
  // turns in their order, but Attend does not wait.
  std::shared_ptr<const Plan> PlanOf(const DnnAttend& attend);
  static int64_t WorkspaceBytes(const Plan& plan);
  // Of whichever engine. It grows with H, of a gradient.
  static int64_t MostWorkspaceBytes(const DnnAttend& attend);

  // Asks the stream for it. `workspace` is for it alone. False: the library has failed, and nothing
  // was asked for.
  bool Attend(const Plan& plan, const DnnCall& call, void* workspace, cudaStream_t stream);

 private:
  // Two threads must not use a handle at once: one is to compile with, one to execute.
  struct Handles {
    void *builds = nullptr, *executes = nullptr;
  };
  Cudnn(std::unique_ptr<const dnn::Functions> functions, Handles handles, int device, Warn warn);
  // Whether no plan is to be made; then *plan is it.
  bool Knows(const DnnAttend& attend, std::shared_ptr<const Plan>* plan);
  std::shared_ptr<const Plan> NewPlan(const DnnAttend& attend) const;
  // Waits for a turn to compile. False: the run was stopped.
  bool TakeTurn();
  void EndTurn();

  const std::unique_ptr<const dnn::Functions> functions_;
  const Handles handles_;
  const int device_;   // the current one of every call
  Mutex executes_mu_;  // of uses of that handle: from the choice of its stream to the call
  Mutex turns_mu_;
  CondVar turn_ended_;
  // Those who wait for a turn, the first of whom may have it unless one lasts.
  std::deque<int64_t> waiting_ ATTND_GUARDED_BY(turns_mu_);
  int64_t last_ ATTND_GUARDED_BY(turns_mu_) = 0;
  bool builds_ ATTND_GUARDED_BY(turns_mu_) = false;
  std::atomic<bool> has_told_{false};  // that there was no place for a shape
  mutable Mutex mu_;
  // Null: the library does not compute it.
  using Plans = std::map<DnnAttend, std::shared_ptr<const Plan>>;
  Plans plans_ ATTND_GUARDED_BY(mu_), gradient_plans_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd::cuda
