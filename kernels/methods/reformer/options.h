// Options of reformer, and the sizes that follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/core/random_table.h"
#include "kernels/method/method.h"
#include "kernels/pattern/base/window.h"

namespace attnd {

enum class Lookback : uint8_t { kFlat, kRound };
enum class KeyNorm : uint8_t { kRms, kUnit, kNone };

struct ReformerOptions {
  int64_t chunk_len = 128;
  int64_t n_hashes = 1;
  std::vector<int64_t> n_buckets;  // empty: AutoBuckets
  int64_t chunks_before = 1, chunks_after = 0;
  bool dedup = true;
  bool attend_across_buckets = true;
  Lookback lookback = Lookback::kFlat;
  KeyNorm key_norm = KeyNorm::kRms;
  double self_value = -1e5;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  uint64_t seed = 0;
};

std::vector<OptionSpec<ReformerOptions>> ReformerLines();

// Buckets of a round for N rows, as factors: one, or two of a product.
std::vector<int64_t> BucketFactors(const ReformerOptions& o, int64_t N);
// Columns of the rotations of a round: half of each factor.
int64_t RotationColumns(const std::vector<int64_t>& factors);

// The rules between options, sizes and tensors.
void CheckReformer(const ProblemShape& p, const ReformerOptions& o, Reasons* reasons);

// Rows of sequence b that are keys, and those of them that are queries.
Lengths ReformerRows(const ProblemShape& p, const Lengths& sent);
// Whether so many rows are sorted into buckets.
inline bool IsHashed(int64_t n, const ReformerOptions& o) { return n > o.chunk_len; }
// Whether some sequence is.
bool HasHashed(const ProblemShape& p, const ReformerOptions& o);

// Calls f(n) with the keys of each sequence, or once where all have Nk, until it returns false.
template <class F>
void ForEachKeyLength(const ProblemShape& p, const F& f) {
  const View* lengths = p.Find("kv_lengths");
  if (lengths == nullptr || lengths->data == nullptr || lengths->dtype != DType::kI32 ||
      lengths->shape.rank != 1) {
    f(p.Nk);
    return;
  }
  for (int64_t b = 0; b < lengths->shape[0]; ++b) {
    if (!f(IntAt(*lengths, b))) return;
  }
}

DrawParams RotationParams(const ReformerOptions& o);

}  // namespace attnd
