#include "kernels/methods/sinkhorn/options.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/integer.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"

namespace attnd {
namespace {

using O = SinkhornOptions;

constexpr int64_t kMostBlock = int64_t{1} << 30;
constexpr int64_t kMostTop = 65536;
// Sorted keys are rows of a pattern's order, which are int32.
constexpr int64_t kMostSortedKeys = int64_t{1} << 28;

constexpr char kNoise[] = "gumbel_noise", kWeight[] = "sort_w", kNullK[] = "null_k",
               kNullV[] = "null_v";

const char* NameOf(BlockSort sort) { return sort == BlockSort::kTopK ? "topk" : "sinkhorn"; }

OptionSpec<O> SortOption() {
  const std::vector<std::string> names = {"sinkhorn", "topk"};
  return {
      {.name = "sort",
       .type = OptionType::kEnum,
       .default_text = "sinkhorn; causal topk",
       .enum_values = names,
       .help = "mixes of all blocks by Sinkhorn's iterations, or the blocks of the best scores"},
      [names](const OptionValue& v, O* o, Reasons* r) {
        // A refused value becomes out of range, so that later rules skip it.
        int value = static_cast<int>(names.size());
        options_internal::ReadEnum("sort", names, v, &value, r);
        o->sort = static_cast<BlockSort>(value);
      },
      [names](const O& o) -> std::optional<OptionValue> {
        if (!o.sort.has_value()) return std::nullopt;
        return names.at(static_cast<size_t>(*o.sort));
      },
      [](const O& o, int64_t) { return NameOf(o.Sort()); }};
}

OptionSpec<O> LocalOption() {
  return {{.name = "local",
           .type = OptionType::kBool,
           .default_text = "true; with sortcut false",
           .help = "a query sees its own block, too, where there are as many blocks of queries as "
                   "of keys"},
          [](const OptionValue& v, O* o, Reasons* r) {
            bool value = false;
            options_internal::ReadBool("local", v, &value, r);
            o->local = value;
          },
          [](const O& o) { return options_internal::ValueOf(o.local); },
          [](const O& o, int64_t) { return o.Local(); }};
}

int64_t Blocks(int64_t rows, int64_t block) { return block < 1 ? 0 : CeilDiv(rows, block); }

void CheckUnread(const ProblemShape& p, absl::string_view name, bool is_read,
                 absl::string_view needed, Reasons* reasons) {
  if (is_read || p.Find(name) == nullptr) return;
  reasons->Invalid(name, " needs ", needed, ", got ", ToString(p.Find(name)->shape));
}

bool IsLinear(const O& o) { return o.sort_net == SortNet::kLinear; }
bool HasNulls(const O& o) { return o.causal && o.IsTopK(); }

void CheckOptions(const O& o, Reasons* reasons) {
  if (o.causal && IsLinear(o)) {
    reasons->Invalid("sort_net must be attention with causal, got linear");
  }
  if (o.sortcut > 0 && IsLinear(o)) {
    reasons->Invalid("sort_net must be attention with sortcut, got linear");
  }
  if (o.causal && o.sortcut > 0) reasons->Invalid("sortcut must be 0 with causal, got ", o.sortcut);
  if (o.causal && o.block_size > 0 && o.KvBlock() > 0 && o.KvBlock() != o.block_size) {
    reasons->Invalid("kv_block_size must be block_size = ", o.block_size, " with causal, got ",
                     o.KvBlock());
  }
  const int64_t n_top = o.n_top.value_or(1);
  if (o.Sort() == BlockSort::kSinkhorn && n_top > 1) {
    reasons->Invalid("n_top must be 1 with sort sinkhorn, got ", n_top);
  } else if (o.sortcut > 0 && n_top > 1) {
    reasons->Invalid("n_top must be 1 with sortcut, got ", n_top);
  }
  if (o.gumbel && o.IsTopK()) reasons->Invalid("gumbel needs sort sinkhorn, got topk");
}

void CheckTensors(const ProblemShape& p, const O& o, Reasons* reasons) {
  const int64_t nq = Blocks(p.Nq, o.block_size), nk = Blocks(p.Nk, o.KvBlock());
  if (IsLinear(o) && nq != nk) {
    reasons->Invalid("sort_net linear needs as many blocks of queries as of keys, got ", nq,
                     " and ", nk);
  }
  CheckShapes(p, SinkhornInputs(),
              {{"nq", nq, "ceil(Nq / block_size)"},
               {"nk", nk, "ceil(Nk / kv_block_size)"},
               {"2D", 2 * p.D}},
              reasons);
  const auto check = [&](const SinkhornDraw& drawn) {
    CheckDrawn(p, drawn.params.name, drawn.params, drawn.shape, reasons);
  };
  if (o.gumbel) check(DrawnNoise(p, o));
  if (IsLinear(o)) check(DrawnWeight(p, o));
  for (const bool of_keys : {true, false}) {
    if (HasNulls(o)) check(DrawnNull(p, o, of_keys));
  }
}

void CheckSortedKeys(const ProblemShape& p, const O& o, Reasons* reasons) {
  const int64_t nq = Blocks(p.Nq, o.block_size), nk = Blocks(p.Nk, o.KvBlock());
  // Blocks of keys are no longer than the keys, unless nulls stand beside others.
  const int64_t width = HasNulls(o) && nk > 1 ? o.KvBlock() : std::min(o.KvBlock(), p.Nk);
  const double rows = o.sortcut > 0 ? 1 : static_cast<double>(nq);
  const int64_t picked = HasNulls(o) ? o.Top() : std::min(o.Top(), std::max(nq, nk));
  if (rows * static_cast<double>(picked) * static_cast<double>(width) <=
      static_cast<double>(kMostSortedKeys)) {
    return;
  }
  const char* const decides = o.sortcut > 0 ? "sortcut" : o.IsTopK() ? "n_top" : "Nq";
  reasons->Invalid(decides, " must leave at most ", kMostSortedKeys, " sorted keys, got ", picked,
                   " blocks of ", width, " for ", static_cast<int64_t>(rows), " blocks of queries");
}

}  // namespace

std::vector<OptionSpec<O>> SinkhornLines() {
  return {
      IntOption("block_size", &O::block_size, {.min = 1, .max = kMostBlock},
                "b, queries of a block"),
      IntOption("kv_block_size", &O::kv_block_size, {.min = 1, .max = kMostBlock}, "block_size",
                "keys of a block; causal: block_size",
                [](const O& o, int64_t) { return o.block_size; }),
      SortOption(),
      EnumOption("sort_net", &O::sort_net, {"attention", "linear"},
                 "scores of blocks: products of their means, or their sums by sort_w"),
      ReadIf(
          "sort is sinkhorn", [](const O& o) { return !o.IsTopK(); },
          IntOption("iters", &O::iters, {.min = 0, .max = 50}, "Sinkhorn iterations")),
      ReadIf(
          "sort is sinkhorn or causal is true", [](const O& o) { return !o.IsTopK() || o.causal; },
          FloatOption("temperature", &O::temperature, {.min = 1e-15, .max = 1e30},
                      "0.75; causal topk 1", "divides the scores of blocks",
                      [](const O& o, int64_t) { return o.Temperature(); })),
      BoolOption("gumbel", &O::gumbel, "adds noise to the scores of Sinkhorn's iterations"),
      IntOption("n_top", &O::n_top, {.min = 1, .max = kMostTop}, "1; causal topk 2",
                "sorted blocks of a query block, at most all; topk only",
                [](const O& o, int64_t) { return o.Top(); }),
      IntOption("sortcut", &O::sortcut, {.min = 0, .max = kMostTop},
                "n: every query sees the first n sorted blocks, at most all; 0: off"),
      LocalOption(),
      ScaleOption(&O::scale, "multiplies q k^T"),
      BoolOption("causal", &O::causal,
                 "query i sees keys j <= i of its block, and blocks before it are sorted; Nq = Nk"),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> SinkhornInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs[3].help = "0..Nq: rows beyond give out = 0, lse = -inf; absent and Nq = Nk: kv_lengths";
  inputs.push_back({kNoise, "[B,H,nq,nk]", "float",
                    "added to the scores of blocks, nq = ceil(Nq / block_size), nk = ceil(Nk / "
                    "kv_block_size); with gumbel, drawn when absent, for the padded blocks: "
                    "-log(-log(u + 1e-6) + 1e-6)"});
  inputs.push_back(Differentiable(
      kWeight, "[H,2D,nk]", "of sort_net linear; drawn when absent for the padded nk, N(0, 1)"));
  inputs.push_back(
      Differentiable(kNullK, "[H,D]",
                     "keys of the blocks before the first; causal topk; drawn when absent, "
                     "N(0, 1)"));
  inputs.push_back(Differentiable(kNullV, "[H,Dv]", "their values; drawn when absent, N(0, 1)"));
  return inputs;
}

SinkhornDraw DrawnNoise(const ProblemShape& p, const O& o) {
  return {{.seed = o.seed, .name = kNoise, .distribution = Distribution::kGumbel},
          {p.B, p.H, Blocks(p.Nq, o.block_size), Blocks(p.Nk, o.KvBlock())}};
}
SinkhornDraw DrawnWeight(const ProblemShape& p, const O& o) {
  return {{.seed = o.seed, .name = kWeight}, {p.H, 2 * p.D, Blocks(p.Nk, o.KvBlock())}};
}
SinkhornDraw DrawnNull(const ProblemShape& p, const O& o, bool of_keys) {
  return {{.seed = o.seed, .name = of_keys ? kNullK : kNullV}, {p.H, of_keys ? p.D : p.Dv}};
}

void CheckSinkhorn(const ProblemShape& p, const O& o, Reasons* reasons) {
  CheckOptions(o, reasons);
  const bool is_known = p.HasSizesOf("q") && p.HasSizesOf("k");
  if (is_known && o.causal && p.Nq != p.Nk) {
    reasons->Invalid("Nk must be Nq = ", p.Nq, " with causal, got ", p.Nk);
  }
  CheckUnread(p, kNoise, o.gumbel, "gumbel", reasons);
  CheckUnread(p, kWeight, IsLinear(o), "sort_net linear", reasons);
  CheckUnread(p, kNullK, HasNulls(o), "causal and sort topk", reasons);
  CheckUnread(p, kNullV, HasNulls(o), "causal and sort topk", reasons);
  if (o.block_size < 1 || o.KvBlock() < 1 || !is_known) return;
  CheckTensors(p, o, reasons);
  CheckSortedKeys(p, o, reasons);
}

}  // namespace attnd
