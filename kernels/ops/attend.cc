// Ops::Attend over one pattern and over parts, and their gradient rules.
#include <algorithm>
#include <memory>

#include "kernels/ops/attend_call.h"

namespace attnd {
namespace {

// Adds `more` to `sums`, element by element; an empty tensor is zero.
void AddTo(Ops& ops, const std::vector<Tensor>& more, std::vector<Tensor>* sums) {
  for (size_t i = 0; i < more.size(); ++i) {
    Tensor& sum = (*sums)[i];
    if (more[i].empty()) continue;
    sum = sum.empty() ? more[i] : ops.Add(sum, more[i]);
  }
}

// With the merged out and lse every part's own backward is exact: P_ij = exp(s_ij - lse_i) and
// delta_i are those of the whole. The sinks belong to the first part alone. `kept`: of each part.
GradRule RuleOf(const AttendCall& call, std::vector<AttendSeqs> parts, const AttendOut& out,
                std::vector<std::shared_ptr<AttendKept>> kept, bool wide) {
  return [call, parts = std::move(parts), out, kept = std::move(kept), wide](
             Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
    AttendFlow flow{out, WithContiguousRows(ops, grads[0]), grads.size() > 1 ? grads[1] : Tensor(),
                    nullptr};
    std::vector<Tensor> sums(wanted.size());
    for (size_t i = 0; i < parts.size() && ops.status().ok(); ++i) {
      flow.kept = kept[i];
      AddTo(ops, LaunchAttendGrad(ops, call, parts[i], flow, wanted, /*sinks=*/i == 0, wide),
            &sums);
      kept[i]->of_device.reset();
    }
    return sums;
  };
}

AttendOut AttendParts(Ops& ops, AttendCall call, std::span<const AttendSeqs> parts,
                      std::optional<DType> asked) {
  const std::vector<Tensor> inputs = call.Inputs();
  if (!Prepare(ops, parts, &call)) return {};
  const bool many = parts.size() > 1;
  const DType dtype = asked.value_or(call.q[0].dtype);
  const bool records =
      std::ranges::any_of(inputs, [&](const Tensor& input) { return ops.Records({&input}); });
  std::vector<AttendOut> outs;
  std::vector<std::shared_ptr<AttendKept>> kept;
  for (const AttendSeqs& seqs : parts) {
    const bool sinks = outs.empty();
    kept.push_back(records ? std::make_shared<AttendKept>() : nullptr);
    outs.push_back(LaunchAttend(ops, call, seqs, many ? DType::kF32 : dtype, sinks, kept.back()));
    if (!ops.status().ok()) return {};
  }
  const AttendOut out = many ? ops.Merge(outs, dtype) : outs[0];
  if (!ops.status().ok() || !records) return out;
  std::vector<Tensor> outputs = {out.out};
  if (!out.lse.empty()) outputs.push_back(out.lse);
  // An output wider than q is one part of a sum. Its gradients are parts of sums too: keep them
  // wide.
  const bool wide = many || dtype != call.q[0].dtype;
  ops.tape()->Record(inputs, std::move(outputs),
                     RuleOf(call, {parts.begin(), parts.end()}, out, std::move(kept), wide));
  return out;
}

}  // namespace

PairTotal& PairTotal::operator+=(const PairTotal& more) {
  known += more.known;
  counted.insert(counted.end(), more.counted.begin(), more.counted.end());
  return *this;
}

double PairTotal::total() const {
  double sum = known;
  for (const auto& count : counted) {
    sum += static_cast<double>(count->pairs());
  }
  return sum;
}

AttendOut Ops::Attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendParams& params,
                      const AttendSeqs& seqs, const AttendTensors& terms) {
  return AttendParts(*this, {q, k, v, params, terms}, {&seqs, 1}, std::nullopt);
}

AttendOut Ops::Attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendParams& params,
                      const std::vector<AttendSeqs>& parts, const AttendTensors& terms,
                      std::optional<DType> dtype) {
  const bool fits = parts.size() <= 1 || params.weighting == Weighting::kSoftmax;
  if (!Require(fits, "attend", "parts are merged by log-sum-exp, softmax only")) return {};
  return AttendParts(*this, {q, k, v, params, terms}, parts, dtype);
}

}  // namespace attnd
