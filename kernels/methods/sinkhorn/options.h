// Options and tensors of sinkhorn, and the rules between them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/core/random_table.h"
#include "kernels/method/info.h"
#include "kernels/method/options.h"
#include "kernels/method/problem.h"

namespace attnd {

enum class BlockSort : uint8_t { kSinkhorn, kTopK };
enum class SortNet : uint8_t { kAttention, kLinear };

struct SinkhornOptions {
  int64_t block_size = 64;
  std::optional<int64_t> kv_block_size;  // unset: block_size
  std::optional<BlockSort> sort;
  SortNet sort_net = SortNet::kAttention;
  int64_t iters = 7;
  std::optional<double> temperature;
  bool gumbel = false;
  std::optional<int64_t> n_top;
  int64_t sortcut = 0;
  std::optional<bool> local;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  uint64_t seed = 0;

  BlockSort Sort() const { return sort.value_or(causal ? BlockSort::kTopK : BlockSort::kSinkhorn); }
  bool IsTopK() const { return Sort() == BlockSort::kTopK; }
  int64_t KvBlock() const { return kv_block_size.value_or(block_size); }
  double Temperature() const { return temperature.value_or(causal && IsTopK() ? 1 : 0.75); }
  // Sorted blocks that are chosen for a query block.
  int64_t Top() const {
    if (sortcut > 0) return sortcut;
    return n_top.value_or(causal && IsTopK() ? 2 : 1);
  }
  bool Local() const { return local.value_or(sortcut == 0); }
};

std::vector<OptionSpec<SinkhornOptions>> SinkhornLines();
std::vector<TensorInfo> SinkhornInputs();

// What is drawn where it is not sent.
struct SinkhornDraw {
  DrawParams params;
  Shape shape;
};
SinkhornDraw DrawnNoise(const ProblemShape& p, const SinkhornOptions& o);
SinkhornDraw DrawnWeight(const ProblemShape& p, const SinkhornOptions& o);
SinkhornDraw DrawnNull(const ProblemShape& p, const SinkhornOptions& o, bool of_keys);

void CheckSinkhorn(const ProblemShape& p, const SinkhornOptions& o, Reasons* reasons);

}  // namespace attnd
