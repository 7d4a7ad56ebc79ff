// A method for tests: copies q, can advance a fake clock, and fails on request.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/engine/engine.h"
#include "kernels/method/method.h"
#include "kernels/ops/ops.h"

namespace attnd {

class PuppetMethod final : public Method {
 public:
  // A request whose first element is this makes the whole batch fail.
  static constexpr float kBad = 666;

  PuppetMethod() { info_.id = "softmax"; }

  const MethodInfo& info() const override { return info_; }
  OptionsHandle Parse(const OptionMap&, Reasons*) const override { return nullptr; }
  std::string Describe(const void*, int64_t) const override { return ""; }
  void Check(const ProblemShape&, const void*, Reasons*) const override {}
  std::vector<std::string> Notes(const ProblemShape&, const void*) const override { return {}; }
  bool SeesByPosition(const ProblemShape&, const void*) const override { return false; }
  std::string Branch(const ProblemShape&, const void*) const override { return ""; }

  Outputs Run(Ops& ops, const Inputs& in, const void*) const override {
    if (on_run) on_run();
    {
      const MutexLock lock(&mu_);
      batches.push_back(static_cast<int>(in.q.size()));
      if (fails) ops.Fail(fails(in.q.size()));
      const RunControl* const run = ops.stream().control();
      if (run != nullptr) waited_shares.push_back(run->waited_share());
    }
    std::vector<Shape> shapes;
    std::vector<Layout> layouts;
    for (size_t p = 0; p < in.q.size(); ++p) {
      if (*in.q[p].As<float>() == kBad) ops.Fail(absl::InvalidArgumentError("puppet: bad value"));
      shapes.push_back(in.q[p].shape);
      layouts.push_back(in.q[p].layout);
    }
    Outputs outputs;
    outputs.out = ops.Empty(DType::kF32, shapes, layouts);
    for (size_t p = 0; p < outputs.out.size(); ++p) {
      std::memcpy(outputs.out[p].data, in.q[p].data, in.q[p].bytes());
    }
    return outputs;
  }

  // A plan for q [1,1,n,1] float32 with an output of that shape; `seconds`: the prediction.
  std::shared_ptr<const Plan> MakePlan(int64_t n, double seconds = 0) const {
    auto plan = std::make_shared<Plan>();
    const View q = DenseView(nullptr, DType::kF32, {1, 1, n, 1});
    plan->method = this;
    plan->tensors["q"] = q;
    plan->shape.tensors = &plan->tensors;
    plan->outputs = {{"out", DType::kF32, Layout::kBHND, q.shape}};
    plan->bucket = "puppet";
    plan->tokens = n;
    plan->flops = 1000.0 * static_cast<double>(n);
    plan->seconds = seconds;
    return plan;
  }

  std::function<void()> on_run;
  // What a batch of so many requests ends with; null: OK.
  std::function<absl::Status(size_t requests)> fails;
  // The sizes of the batches that ran, and RunControl::waited_share at their begin. Read when no
  // lane runs.
  mutable std::vector<int> batches;
  mutable std::vector<double> waited_shares;

 private:
  mutable Mutex mu_;  // guards both
  MethodInfo info_;
};

}  // namespace attnd
