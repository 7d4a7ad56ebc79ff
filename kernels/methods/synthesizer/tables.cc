#include "kernels/methods/synthesizer/tables.h"

#include <algorithm>
#include <cmath>

#include "kernels/method/common_inputs.h"

namespace attnd {
namespace {

using Component = SynthesizerComponent;
using Mix = SynthesizerMix;

constexpr int64_t kUsualRank = 8;

// The last size of a tensor that was sent.
int64_t Last(const ProblemShape& p, absl::string_view name, int64_t absent) {
  const View* view = p.Find(name);
  return view == nullptr || view->shape.rank == 0 ? absent : view->shape[view->shape.rank - 1];
}

}  // namespace

const std::vector<std::string>& ComponentNames() {
  static const auto& names = *new std::vector<std::string>{"dense", "random", "factorized_random",
                                                           "factorized_dense", "dot"};
  return names;
}

std::optional<int64_t> SynthesizerOptions::IndexOf(Component component) const {
  const auto found = std::find(components.begin(), components.end(), component);
  if (found == components.end()) return std::nullopt;
  return found - components.begin();
}

std::vector<OptionSpec<SynthesizerOptions>> SynthesizerLines() {
  using O = SynthesizerOptions;
  return {
      EnumsOption("components", &O::components, ComponentNames(), "the scores that are added up"),
      ReadIf(
          "components has two or more", [](const O& o) { return o.components.size() > 1; },
          EnumOption("mix", &O::mix, {"sum", "softmax"},
                     "softmax: components weigh as softmax(mix_logits)")),
      ReadIf(
          "components has factorized_random",
          [](const O& o) { return o.Has(Component::kFactorizedRandom); },
          IntOption("rank", &O::rank, {.min = 1, .max = 1024}, kUsualRank,
                    "of r1 and r2; where they are sent, it must be theirs")),
      ReadIf(
          "components has factorized_dense",
          [](const O& o) { return o.Has(Component::kFactorizedDense); },
          IntOption("a", &O::a, {.min = 1}, "ceil(sqrt(Nk))",
                    "1..Nk; b = ceil(Nk/a) unless f_b is sent")),
      ReadIf(
          "components has random or factorized_random",
          [](const O& o) {
            return o.Has(Component::kRandom) || o.Has(Component::kFactorizedRandom);
          },
          IntOption("row_offset", &O::row_offset, {.min = 0}, "Nk - Nq if causal, else 0",
                    "row of r and r1 that query 0 reads")),
      ReadIf(
          "components has dot", [](const O& o) { return o.Has(Component::kDot); },
          ScaleOption(&O::scale, "multiplies q k^T")),
      CausalOption(&O::causal),
      SeedOption(&O::seed),
  };
}

const std::vector<SynthesizerTable>& SynthesizerTables() {
  static const auto& tables = *new std::vector<SynthesizerTable>{
      {"w_dense", "[D,L] or [H,D,L]",
       "weights of dense, L >= Nk; drawn when absent, for the padded Nk", Component::kDense},
      {"b_dense", "[L] or [H,L]", "bias of dense; zeros when absent", Component::kDense},
      {"r", "[H,L,L]", "scores, L >= max(Nk, Nq + row_offset); drawn when absent, for the padded N",
       Component::kRandom},
      {"r1", "[H,L,R]",
       "rows of queries, L >= max(Nk, Nq + row_offset); drawn when absent, for the padded N",
       Component::kFactorizedRandom},
      {"r2", "[H,L,R]", "rows of keys, L >= Nk; drawn when absent, for the padded Nk",
       Component::kFactorizedRandom},
      {"f_a", "[D,a] or [H,D,a]", "first factor's weights; drawn when absent",
       Component::kFactorizedDense},
      {"f_b", "[D,b] or [H,D,b]",
       "second factor's weights, a b >= Nk; drawn when absent, for the padded Nk",
       Component::kFactorizedDense},
      {"fa_b", "[a] or [H,a]", "first factor's bias; zeros when absent",
       Component::kFactorizedDense},
      {"fb_b", "[b] or [H,b]", "second factor's bias; zeros when absent",
       Component::kFactorizedDense},
  };
  return tables;
}

bool IsDrawn(const std::string& name) {
  return name != "b_dense" && name != "fa_b" && name != "fb_b";
}

std::vector<TensorInfo> SynthesizerInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs[0].required = inputs[1].required = false;
  inputs[0].help =
      "queries: the first layer's output for dense kinds; may be left out without them "
      "and dot: Nq = Nk, H as in r or r1";
  inputs[1].help = "keys of the component dot";
  inputs.push_back(
      Differentiable("bias", "broadcastable to [B,H,Nq,Nk]", "added to the scores; -inf hides"));
  for (const SynthesizerTable& table : SynthesizerTables()) {
    inputs.push_back(Differentiable(table.name, table.shape, table.help));
  }
  inputs.push_back(Differentiable("mix_logits", "[C]", "of each component; zeros when absent"));
  return inputs;
}

SynthesizerSizes::SynthesizerSizes(const ProblemShape& p, const SynthesizerOptions& o) {
  const int64_t offset = o.RowOffset(p.Nq, p.Nk);
  rows = offset > INT64_MAX - p.Nq ? INT64_MAX : p.Nq + offset;
  rank = Last(p, "r1", Last(p, "r2", o.rank.value_or(kUsualRank)));
  const double root = std::ceil(std::sqrt(static_cast<double>(p.Nk)));
  a = Last(p, "f_a", o.a.value_or(std::max<int64_t>(static_cast<int64_t>(root), 1)));
  b = Last(p, "f_b", a < 1 ? 1 : std::max<int64_t>(p.Nk / a + (p.Nk % a > 0), 1));
}

DrawnTable DrawnOf(const std::string& name, const ProblemShape& p, const SynthesizerOptions& o) {
  const SynthesizerSizes sizes(p, o);
  const int64_t L = p.Nk;
  const auto glorot = [&](int64_t fans, const Shape& shape) {
    const double bound = std::sqrt(6.0 / static_cast<double>(std::max<int64_t>(fans, 1)));
    return DrawnTable{UniformDraw(o.seed, name, bound), shape};
  };
  if (name == "r") return glorot(L + L, {p.H, L, L});
  if (name == "r1" || name == "r2") return glorot(L + sizes.rank, {p.H, L, sizes.rank});
  const int64_t columns = name == "f_a" ? sizes.a : name == "f_b" ? sizes.b : L;
  const double D = static_cast<double>(std::max<int64_t>(p.D, 1));
  return {{.seed = o.seed, .name = name, .deviation = 1 / std::sqrt(D)}, {p.D, columns}};
}

}  // namespace attnd
