#include "kernels/ops/tape.h"

#include <cassert>

#include "kernels/ops/ops.h"

namespace attnd {

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
  ops.set_recording(false);
  std::unordered_map<const void*, Tensor> grad_of;
  const auto add = [&](const Tensor& tensor, const Tensor& grad) {
    if (grad.empty() || tensor.empty()) return;
    Tensor& sum = grad_of[tensor.id()];
    sum = sum.empty() ? grad : ops.Add(sum, grad);
  };
  for (size_t i = 0; i < outputs.size(); ++i) add(outputs[i], grads[i]);

  // What was asked for must outlive its own node: an input may be the output of an earlier call.
  std::unordered_set<const void*> asked;
  for (const Tensor& input : inputs) asked.insert(input.id());

  while (!nodes_.empty() && ops.status().ok()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();  // frees what the rule has saved as soon as it has run
    std::vector<Tensor> flows;
    bool any = false;
    for (const Tensor& output : node.outputs) {
      const auto found = grad_of.find(output.id());
      flows.push_back(found == grad_of.end() ? Tensor() : found->second);
      any = any || !flows.back().empty();
      if (found != grad_of.end() && !asked.contains(output.id())) grad_of.erase(found);
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
  ops.set_recording(true);

  std::vector<Tensor> result;
  for (const Tensor& input : inputs) {
    const auto found = grad_of.find(input.id());
    result.push_back(found == grad_of.end() ? Tensor() : found->second);
  }
  return result;
}

}  // namespace attnd
