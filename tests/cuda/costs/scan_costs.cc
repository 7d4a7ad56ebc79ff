// scan: by chunks on tensor cores, three products of TF32 each, or key by key without (decays a
// feature, the delta rule). Least products of a key and a query: those of its recurrence, 2 D Dv
// FLOPs each; chunks add those of keys with queries.
#include <cstdint>
#include <string>

#include "tests/cpu/scan_case.h"
#include "tests/cuda/costs/table.h"

namespace attnd::testing {
namespace {

// Products of the recurrence, forward: the state's update, the query's read, of a delta rule the
// key's read. Backward: of dq, dk, dv, and the state and its gradient again.
void Scan(const std::string& name, ScanSpec spec, double forward, double backward,
          const Table& table) {
  spec.H = spec.Hkv = 2;
  spec.Nq = spec.Nk = 1024;
  spec.D = spec.Dv = 64;
  ScanCase c(spec);
  const auto rows = static_cast<double>(spec.H * spec.Nk), width = static_cast<double>(spec.D);
  const double product = 2 * width * width * rows, array = width * rows * 4, one = rows * 4;
  // q, k, v, out and lse; decays and beta as they come.
  double extra = 0;
  if (spec.decays == ScanSpec::Decays::kKey) extra = one;
  if (spec.decays == ScanSpec::Decays::kFeature) extra = array;
  if (spec.beta) extra += one;
  const bool by_chunks =
      spec.params.rule == ScanRule::kSum && spec.decays != ScanSpec::Decays::kFeature;
  const Unit unit = by_chunks ? Unit::kTensorSplit : Unit::kScalar;
  const ScanArgs args{.params = c.spec.params, .problems = {c.Problem()}};
  table.Row("`scan` " + name, {forward * product, unit, 4 * array + one + extra, array}, args);
  // Gradients of decays come from walks.
  const Unit grad_unit = spec.decays == ScanSpec::Decays::kNone ? unit : Unit::kScalar;
  const ScanGradArgs grad{.params = c.spec.params, .problems = {c.GradProblem()}};
  table.Row("its gradient " + name,
            {backward * product, grad_unit, 7 * array + one + 2 * extra, 3 * array}, grad);
}

}  // namespace

void PrintScan(const Table& table) {
  Scan("plain", {.params = {.causal = true}}, 2, 5, table);
  Scan("plain, not causal", {}, 2, 5, table);
  Scan("decay a key", {.params = {.causal = true}, .decays = ScanSpec::Decays::kKey}, 2, 5, table);
  Scan("decay a feature", {.params = {.causal = true}, .decays = ScanSpec::Decays::kFeature}, 2, 5,
       table);
  Scan("delta rule", Delta({.D = 64, .beta = true}), 3, 8, table);
}

}  // namespace attnd::testing
