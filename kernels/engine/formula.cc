#include "kernels/engine/formula.h"

#include "kernels/engine/validate.h"
#include "kernels/method/method.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

// Dense, in its dtype and layout.
Tensor ZerosLike(Ops& ops, const Tensor& x) {
  const std::vector<Shape> shapes = ShapesOf(x);
  const Tensor zeros = ops.Constant(0, shapes);
  const Tensor out = ops.Empty(x[0].dtype, shapes, LayoutsOf(x));
  if (!ops.status().ok()) return {};
  ops.CopyInto(ViewsOf(zeros), ViewsOf(out));
  return out;
}

// The gradients of every differentiable tensor that was sent, in the order of the method's table:
// zeros of one on which no output with a gradient depends.
void Replay(Ops& ops, const MethodInfo& info, const Outputs& forward,
            const std::map<std::string, Tensor>& sent, RunResult* result) {
  std::vector<Tensor> outputs, grads, inputs;
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, const Tensor& output) {
    const auto grad = sent.find("grad_" + name);
    if (output.empty() || grad == sent.end()) return;
    outputs.push_back(output);
    grads.push_back(grad->second);
  };
  add("out", forward.out);
  add("lse", forward.lse);
  for (const auto& [name, output] : forward.extra) add(name, output);
  for (const TensorInfo& input : info.inputs) {
    const auto found = sent.find(input.name);
    if (!input.differentiable || found == sent.end()) continue;
    if (forward.constants.contains(input.name)) continue;
    names.push_back(input.name);
    inputs.push_back(found->second);
  }
  std::vector<Tensor> back = ops.tape()->Replay(ops, outputs, grads, inputs);
  for (size_t i = 0; i < names.size(); ++i) {
    if (back[i].empty() && ops.status().ok()) back[i] = ZerosLike(ops, inputs[i]);
    result->outputs.emplace_back(names[i], back[i]);
  }
}

}  // namespace

// Scores and values cost 2 (D + Dv) a pair, backward kBackwardFlops times that.
ProblemCost CostOf(const Plan& plan, const RunResult& run, size_t p) {
  if (run.visible_pairs.empty()) return {plan.visible_pairs, plan.flops};
  const double pairs = run.visible_pairs[p].total();
  const double flops = 2 * static_cast<double>(plan.shape.D + plan.shape.Dv) *
                       (plan.direction == Direction::kBackward ? kBackwardFlops : 1);
  return {pairs, plan.flops + (pairs - plan.visible_pairs) * flops};
}

absl::StatusOr<RunResult> RunFormula(Stream& stream, const Caches& caches, const Plan& plan,
                                     const std::map<std::string, Tensor>& sent,
                                     std::span<const ProblemShape> problems) {
  const bool backward = plan.direction == Direction::kBackward;
  const MethodInfo& info = plan.method->info();
  Tape tape;
  Ops ops(stream, backward ? &tape : nullptr, caches.patterns, caches.draws);
  ops.set_deterministic(plan.is_deterministic);
  Inputs inputs{.problems = problems};
  for (const auto& [name, tensor] : sent) {
    if (OutputOfGrad(info, name) != nullptr) continue;
    if (name == "q") {
      inputs.q = tensor;
    } else if (name == "k") {
      inputs.k = tensor;
    } else if (name == "v") {
      inputs.v = tensor;
    } else {
      inputs.tensors[name] = tensor;
    }
  }
  if (backward) {
    for (const TensorInfo& input : info.inputs) {
      const auto found = sent.find(input.name);
      if (input.differentiable && found != sent.end()) tape.Watch(found->second);
    }
  }
  Outputs forward = plan.method->Run(ops, inputs, plan.options.get());
  RunResult result{.forward_pairs = stream.work().visible_pairs,
                   .forward_flops = stream.work().flops,
                   .estimates_pairs = ops.estimates_pairs(),
                   .visible_pairs = forward.visible_pairs};
  if (backward && ops.status().ok()) {
    Replay(ops, info, forward, sent, &result);
  } else if (ops.status().ok()) {
    result.outputs.emplace_back("out", forward.out);
    if (!forward.lse.empty()) result.outputs.emplace_back("lse", forward.lse);
    for (const auto& [name, tensor] : forward.extra) result.outputs.emplace_back(name, tensor);
  }
  ATTND_RETURN_IF_ERROR(ops.status());
  return result;
}

}  // namespace attnd
