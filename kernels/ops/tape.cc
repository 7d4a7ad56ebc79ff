#include "kernels/ops/tape.h"

#include <cassert>

#include "kernels/ops/ops.h"
#include "kernels/ops/passed_on.h"

namespace attnd {
namespace {

// a + b, in float32 where one of them is.
Tensor Sum(Ops& ops, const Tensor& a, const Tensor& b) {
  return a[0].dtype != DType::kF32 && b[0].dtype == DType::kF32 ? ops.Add(b, a) : ops.Add(a, b);
}

// `grad` as a dense tensor of the dtype and layout of `input`; itself if it is that.
Tensor SettledLike(Ops& ops, const Tensor& grad, const Tensor& input) {
  bool fits = grad.size() == input.size();
  for (size_t p = 0; fits && p < grad.size(); ++p) fits = grad[p].shape == input[p].shape;
  if (!ops.Require(fits, "tape", "a gradient has the shapes of its tensor")) return grad;
  return Settled(ops, grad, input[0].dtype, LayoutsOf(input));
}

}  // namespace

void Tape::Watch(const Tensor& tensor) {
  assert(!tensor.empty());
  if (watched_.insert(tensor.id()).second) kept_.push_back(tensor);
}

bool Tape::IsWatched(const Tensor& tensor) const { return watched_.contains(tensor.id()); }

void Tape::Record(std::vector<Tensor> inputs, std::vector<Tensor> outputs, GradRule rule) {
  for (const Tensor& output : outputs) watched_.insert(output.id());  // the node keeps it alive
  nodes_.push_back({std::move(inputs), std::move(outputs), std::move(rule)});
}

std::vector<Tensor> Tape::Replay(Ops& ops, std::span<const Tensor> outputs,
                                 std::span<const Tensor> grads, std::span<const Tensor> inputs) {
  assert(outputs.size() == grads.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool fits = grads[i].empty() || ShapesOf(grads[i]) == ShapesOf(outputs[i]);
    if (!ops.Require(fits, "tape", "a gradient that comes in has the shapes of its output")) {
      return std::vector<Tensor>(inputs.size());
    }
  }
  ops.set_recording(false);
  std::unordered_map<const void*, Tensor> grad_of;
  const auto add = [&](const Tensor& tensor, const Tensor& grad) {
    if (grad.empty() || tensor.empty()) return;
    Tensor& sum = grad_of[tensor.id()];
    sum = sum.empty() ? grad : Sum(ops, sum, grad);
  };
  for (size_t i = 0; i < outputs.size(); ++i) add(outputs[i], grads[i]);

  // Keep the requested gradients: such an input may be the output of an earlier call.
  std::unordered_set<const void*> requested;
  for (const Tensor& input : inputs) requested.insert(input.id());

  while (!nodes_.empty() && ops.status().ok()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();  // frees what the rule has saved as soon as it has run
    std::vector<Tensor> flows;
    bool any = false;
    for (const Tensor& output : node.outputs) {
      const auto found = grad_of.find(output.id());
      flows.push_back(found == grad_of.end() ? Tensor() : found->second);
      any = any || !flows.back().empty();
      if (found != grad_of.end() && !requested.contains(output.id())) grad_of.erase(found);
    }
    if (!any) continue;
    std::vector<bool> wanted;
    for (const Tensor& input : node.inputs) wanted.push_back(IsWatched(input));
    const std::vector<Tensor> back = node.rule(ops, flows, wanted);
    if (!ops.status().ok()) break;
    assert(back.size() == node.inputs.size());
    for (size_t i = 0; i < back.size(); ++i) {
      if (wanted[i]) add(node.inputs[i], back[i]);
    }
  }
  nodes_.clear();

  std::vector<Tensor> result;
  for (const Tensor& input : inputs) {
    const auto found = grad_of.find(input.id());
    const bool flows = found != grad_of.end() && ops.status().ok();
    if (flows) found->second = SettledLike(ops, found->second, input);
    result.push_back(flows ? found->second : Tensor());
  }
  ops.set_recording(true);
  return result;
}

}  // namespace attnd
