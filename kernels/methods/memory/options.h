// Options and tensors of the methods with segment memories.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/method/method.h"
#include "kernels/method/seq_groups.h"

namespace attnd {

enum class Compression : uint8_t { kMean, kMax, kConv, kDilatedConv, kMostUsed };

struct MemoryOptions {
  std::optional<int64_t> mem_len;  // unset: transformer_xl 0, compressive N
  int64_t clamp_len = -1;
  int64_t same_length = 0;
  bool return_memory = false;
  bool grad_memory = false;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  uint64_t seed = 0;

  // --- of transformer_xl
  int64_t ext_len = 0;

  // --- of compressive
  Compression compression = Compression::kConv;
  int64_t rate = 4;
  std::optional<int64_t> cmem_len;  // unset: mem_len / rate
  std::optional<int64_t> kernel;    // unset: rate
  int64_t dilation = 2;
  bool aux_loss = false;

  bool convolves() const {
    return compression == Compression::kConv || compression == Compression::kDilatedConv;
  }
  // Rows that one row of a convolution reads.
  int64_t taps() const {
    return compression == Compression::kDilatedConv ? kernel.value_or(rate) : rate;
  }
};

// The lines that both methods have. `keeps_nothing`: whether the returned memory has no rows of the
// segment.
std::vector<OptionSpec<MemoryOptions>> MemoryLines(
    const std::function<bool(const MemoryOptions&)>& keeps_nothing);

// q, k, v, lengths, the relative term, bias, mem_k and mem_v with their lengths.
std::vector<TensorInfo> MemoryInputs();
// mem_k, mem_v and mem_lengths of return_memory, or those of `prefix` "cmem"; `rows`: the letter of
// their number.
std::vector<TensorInfo> MemoryOutputs(absl::string_view prefix, absl::string_view rows);

// All rows that queries may see: memories and the segment, M + N.
int64_t AllRows(const ProblemShape& problem);
// Rows of rel_k that are read: distances 0 .. R - 1, larger ones count as R - 1.
int64_t DistancesOf(const ProblemShape& problem, const MemoryOptions& o);
// Dp, the last size of w_r: as sent, or H D, which is rounded up to an even number.
int64_t WaveSize(const ProblemShape& problem);

// The rules that both methods share.
void CheckMemory(const ProblemShape& problem, const MemoryOptions& o,
                 const std::vector<TensorInfo>& inputs, Reasons* reasons);
// `name`_k and `name`_v belong together, `name`_lengths counts their rows: letter M or Nc.
void CheckMemoryOf(const ProblemShape& problem, absl::string_view name, absl::string_view letter,
                   Reasons* reasons);

}  // namespace attnd
