#include "kernels/methods/reformer/options.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/core/integer.h"
#include "kernels/method/drawn.h"
#include "kernels/method/seq_groups.h"
#include "kernels/method/shape_rules.h"
#include "kernels/methods/pattern/rules.h"
#include "kernels/pattern/shapes/reformer.h"

namespace attnd {
namespace {

using O = ReformerOptions;

// More buckets than these are a product of two factors.
constexpr int64_t kMostOfOneFactor = 128;

std::vector<int64_t> AutoBuckets(const O& o, int64_t N) {
  const int64_t buckets = 2 * std::max<int64_t>(1, N / std::max<int64_t>(o.chunk_len, 1));
  if (buckets <= kMostOfOneFactor) return {buckets};
  // A power of two of at least sqrt(buckets).
  int64_t first = 1;
  while (first * first < buckets) first *= 2;
  return {first, 2 * (buckets / (2 * first))};
}

OptionSpec<O> SelfValueOption() {
  OptionSpec<O> line =
      FloatOption("self_value", &O::self_value, {}, "the score of a token with itself");
  line.info.range = ">= -1e+30 and < -1000";
  line.set = [range = line.info.range](const OptionValue& v, O* o, Reasons* reasons) {
    double value = o->self_value;
    options_internal::ReadFloat("self_value", {}, v, &value, reasons);
    if (value >= -1e30 && value < -1e3) {
      o->self_value = value;
    } else {
      reasons->Invalid("self_value must be ", range, ", got ", Shown(v));
    }
  };
  return line;
}

}  // namespace

std::vector<OptionSpec<O>> ReformerLines() {
  return {
      IntOption("chunk_len", &O::chunk_len, {.min = 1}, "rows of a chunk of the sorted order"),
      IntOption("n_hashes", &O::n_hashes, {.min = 1, .max = kMostReformerRounds},
                "rounds of hashing; 4 to 8 find most of what matters"),
      IntsOption(
          "n_buckets", &O::n_buckets, {.min = 2}, "2 max(1, N / chunk_len)",
          "buckets of a round, even; two numbers: factors of a product; default of the padded N"),
      IntOption("chunks_before", &O::chunks_before, {.min = 0}, "chunks seen before the own one"),
      IntOption("chunks_after", &O::chunks_after, {.min = 0}, "chunks seen behind the own one"),
      BoolOption("dedup", &O::dedup, "a key counts once, however many slots show it"),
      BoolOption("attend_across_buckets", &O::attend_across_buckets,
                 "other buckets and rounds in a visible chunk are seen"),
      EnumOption("lookback", &O::lookback, {"flat", "round"},
                 "before the first chunk comes the last of the round before, or of the same"),
      EnumOption("key_norm", &O::key_norm, {"rms", "unit", "none"},
                 "keys are q over its root mean square, over its norm, or q"),
      SelfValueOption(),
      ScaleOption(&O::scale, "multiplies q k^T"),
      BoolOption("causal", &O::causal,
                 "query i sees keys j <= i; later tokens still move the borders of chunks"),
      SeedOption(&O::seed),
  };
}

std::vector<int64_t> BucketFactors(const O& o, int64_t N) {
  return o.n_buckets.empty() ? AutoBuckets(o, N) : o.n_buckets;
}

int64_t RotationColumns(const std::vector<int64_t>& factors) {
  int64_t columns = 0;
  for (const int64_t factor : factors) columns += std::min(factor, int64_t{1} << 60) / 2;
  return columns;
}

DrawParams RotationParams(const O& o) {
  return {.seed = o.seed, .name = "rotations", .distribution = Distribution::kNormal};
}

Lengths ReformerRows(const ProblemShape& p, const Lengths& sent) {
  const int64_t n = std::min(sent.nk, p.Nk);
  return {std::min(sent.nq, n), n};
}

bool HasHashed(const ProblemShape& p, const O& o) {
  bool found = false;
  ForEachKeyLength(p, [&](int64_t n) {
    found = IsHashed(n, o);
    return !found;
  });
  return found;
}

void CheckReformer(const ProblemShape& p, const O& o, Reasons* reasons) {
  const bool is_known = p.HasSizesOf("q") && p.HasSizesOf("v");
  if (is_known && p.Nq != p.Nk) {
    reasons->Invalid("Nk must be Nq = ", p.Nq, ", got ", p.Nk);
  }
  if (o.n_buckets.size() > 2) {
    reasons->Invalid("n_buckets must have at most 2 values, got ", o.n_buckets.size());
    return;
  }
  for (const int64_t factor : o.n_buckets) {
    if (factor % 2 == 0) continue;
    reasons->Invalid("n_buckets must be even, got ", factor);
    return;
  }
  if (o.n_hashes < 1 || o.chunk_len < 1 || !p.HasSizesOf("q")) return;  // refused
  const int64_t columns = RotationColumns(BucketFactors(o, p.Nq));
  CheckShape(p, "rotations", "[H,D,n_hashes,S] or [1,D,n_hashes,S]",
             {{"n_hashes", o.n_hashes}, {"S", columns, "the sum of n_buckets / 2"}}, reasons);
  CheckShape(p, "buckets", "[B,H,n_hashes,Nq]", {{"n_hashes", o.n_hashes}}, reasons);
  CheckApart(p, "rotations", "buckets", reasons);
  if (p.Find("buckets") != nullptr || !HasHashed(p, o)) return;
  CheckDrawn(p, "rotations", RotationParams(o), {p.H, p.D, o.n_hashes, columns}, reasons);
}

}  // namespace attnd
