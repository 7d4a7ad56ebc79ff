// Options of long_short, and the sizes that follow from them.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/core/integer.h"
#include "kernels/core/random_table.h"
#include "kernels/method/method.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/shapes/compressed.h"

namespace attnd {

enum class WindowMode : uint8_t { kSegment, kSliding, kBlocks };
enum class SegmentVisibility : uint8_t { kStrict, kCompleted };
enum class LnScope : uint8_t { kModel, kHead };
enum class LnOrder : uint8_t { kPaper, kNested };

struct LongShortOptions {
  std::optional<int64_t> rank, window;  // unset: RankOf, WindowOf
  std::optional<WindowMode> window_mode;
  int64_t segment_len = 16;
  SegmentVisibility segment_visibility = SegmentVisibility::kStrict;
  bool dual_ln = true;
  LnScope ln_scope = LnScope::kModel;
  LnOrder ln_order = LnOrder::kPaper;
  double ln_eps = 1e-5;
  std::optional<double> scale;
  bool causal = false;
  uint64_t seed = 0;

  int64_t UsualRank() const { return causal ? 1 : 32; }
  int64_t Width() const { return window.value_or(causal ? 512 : 8); }
  WindowMode Mode() const {
    return window_mode.value_or(causal ? WindowMode::kSliding : WindowMode::kSegment);
  }
  // Keys of a segment, and segments of n keys. Not causal: all keys are one segment.
  int64_t SegmentLength(int64_t n) const { return causal ? segment_len : n > 0 ? n : 1; }
  int64_t Segments(int64_t n) const { return causal ? CeilDiv(n, segment_len) : 1; }
};

// r: the option, else that of a tensor that was sent, else the default. 0 in all problems of a
// batch or in none.
int64_t RankOf(const ProblemShape& problem, const LongShortOptions& o);

// The visible keys of a sequence. REQUIRES: Width() >= 0.
Window WindowOf(const LongShortOptions& o, int64_t offset);
CompressedSegments SegmentsOf(const LongShortOptions& o, int64_t Nk, int64_t rank);

// Of dyn_weight.
DrawParams DrawOfWeight(int64_t D, uint64_t seed);

void CheckLongShort(const ProblemShape& problem, const LongShortOptions& o,
                    const std::vector<TensorInfo>& inputs, Reasons* reasons);

}  // namespace attnd
