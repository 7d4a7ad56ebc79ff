// Records primitive calls so that their gradient rules can be replayed backwards.
#pragma once

#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/ops/tensor.h"

namespace attnd {

class Ops;

// Gradients of a call's inputs, in their order, from the gradients of its outputs. An empty Tensor
// among `grads` means zero; wanted[i]: input i needs a gradient; an empty Tensor is returned where
// it does not. A gradient has its tensor's shapes; it may be float32 where the
// tensor is not, and of any strides. The rule may call any primitive of `ops`, which records
// nothing then.
using GradRule = std::function<std::vector<Tensor>(Ops& ops, std::span<const Tensor> grads,
                                                   const std::vector<bool>& wanted)>;

// One forward run. Single-threaded. A call whose inputs depend on no watched tensor is not
// recorded. A tensor used twice gets the sum, in recording order reversed.
class Tape {
 public:
  void Watch(const Tensor& tensor);  // Replay can give its gradient
  bool IsWatched(const Tensor& tensor) const;

  void Record(std::vector<Tensor> inputs, std::vector<Tensor> outputs, GradRule rule);

  // Replays from `outputs` with `grads` (empty Tensor: zero) and returns the gradient of each of
  // `inputs`: dense, in its dtype and layout; an empty Tensor where nothing flows to it. May be
  // called once.
  std::vector<Tensor> Replay(Ops& ops, std::span<const Tensor> outputs,
                             std::span<const Tensor> grads, std::span<const Tensor> inputs);

 private:
  struct Node {
    std::vector<Tensor> inputs, outputs;
    GradRule rule;
  };
  std::vector<Node> nodes_;
  std::unordered_set<const void*> watched_;
  std::vector<Tensor> kept_;  // watched tensors stay alive so that ids stay unique
};

}  // namespace attnd
