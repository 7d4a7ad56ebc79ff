// Blocks of rows of float32 from any dtype and strides, and sums over rows.
#if defined(ATTND_CPU_COLUMN_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_COLUMN_BLOCKS_INL_H_
#undef ATTND_CPU_COLUMN_BLOCKS_INL_H_
#else
#define ATTND_CPU_COLUMN_BLOCKS_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/core/integer.h"
#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/element/element_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kWidth = AlongWalk::kWidth, kBlock = AlongWalk::kBlock;

// Rows in memory or in scratch. Vectors may be read up to a multiple of 16 floats; `width` columns
// are of use.
struct RowBlock {
  const float* data;
  int64_t pitch, rows, width;
};

// Rows of whole vectors of every target: nothing beyond the columns is read or written.
HWY_INLINE bool HoldsVectors(const Patch& p) { return IsInPlace(p) && p.columns % 16 == 0; }

// A unit's chunk of the axis of a view as patches of kBlock rows.
class ColumnPatches {
 public:
  ColumnPatches(const View& view, int which, const AlongWalk& walk, const AlongWalk::Unit& unit) {
    const int64_t begin = unit.chunk * walk.chunk;
    all_ = {view.dtype,
            view.As<char>(),
            std::min(walk.chunk, walk.n - begin),
            walk.width(unit.tile),
            walk.axis_stride[which],
            walk.column_stride[which]};
    all_.data = all_.At(begin, 0) + unit.offset[which] * SizeOf(view.dtype);
  }
  explicit ColumnPatches(const Patch& all) : all_(all) {}

  int64_t count() const { return CeilDiv(all_.rows, kBlock); }
  Patch operator[](int64_t block) const {
    Patch part = all_;
    part.rows = std::min(kBlock, all_.rows - block * kBlock);
    part.data = all_.At(block * kBlock, 0);
    return part;
  }

 private:
  Patch all_;
};

// The same as rows of float32.
class ColumnBlocks {
 public:
  ColumnBlocks(const View& x, const AlongWalk& walk, const AlongWalk::Unit& unit,
               int which = AlongWalk::kX)
      : patches_(x, which, walk, unit) {}
  explicit ColumnBlocks(const Patch& all) : patches_(all) {}

  int64_t count() const { return patches_.count(); }
  // Valid until the next call.
  RowBlock operator[](int64_t block) {
    const Patch part = patches_[block];
    if (HoldsVectors(part)) {
      return {reinterpret_cast<const float*>(part.data), part.row_stride, part.rows, part.columns};
    }
    if (held_ != block) LoadPatch(part, scratch_, kWidth);
    held_ = block;
    return {scratch_, kWidth, part.rows, part.columns};
  }

 private:
  const ColumnPatches patches_;
  int64_t held_ = -1;
  HWY_ALIGN float scratch_[kWidth * kBlock];
};

// acc[c] = f(acc[c], element, c) over the rows in order, in vectors.
template <class F>
HWY_INLINE void FoldRows(const RowBlock& block, float* acc, const F& f) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kStep = HWY_LANES(float);
  int64_t c = 0;
  for (; c + 4 * kStep <= block.width; c += 4 * kStep) {
    float* a = acc + c;
    V a0 = hn::LoadU(d, a), a1 = hn::LoadU(d, a + kStep), a2 = hn::LoadU(d, a + 2 * kStep),
      a3 = hn::LoadU(d, a + 3 * kStep);
    const float* x = block.data + c;
    for (int64_t r = 0; r < block.rows; ++r, x += block.pitch) {
      a0 = f(a0, hn::LoadU(d, x), c);
      a1 = f(a1, hn::LoadU(d, x + kStep), c + kStep);
      a2 = f(a2, hn::LoadU(d, x + 2 * kStep), c + 2 * kStep);
      a3 = f(a3, hn::LoadU(d, x + 3 * kStep), c + 3 * kStep);
    }
    hn::StoreU(a0, d, a);
    hn::StoreU(a1, d, a + kStep);
    hn::StoreU(a2, d, a + 2 * kStep);
    hn::StoreU(a3, d, a + 3 * kStep);
  }
  for (; c < block.width; c += kStep) {
    V a = hn::LoadU(d, acc + c);
    const float* x = block.data + c;
    for (int64_t r = 0; r < block.rows; ++r, x += block.pitch) a = f(a, hn::LoadU(d, x), c);
    hn::StoreU(a, d, acc + c);
  }
}

HWY_INLINE void AddColumns(const float* x, float* acc) {
  for (int64_t c = 0; c < kWidth; ++c) acc[c] += x[c];
}

// Adds what it is given pairwise, like the bits of a counter: the error grows with the logarithm.
class PairwiseSum {
 public:
  void Add(float* sum) {  // kWidth floats, overwritten
    int64_t level = 0;
    for (; (count_ >> level & 1) != 0; ++level) AddColumns(levels_[level], sum);
    std::copy(sum, sum + kWidth, levels_[level]);
    ++count_;
  }
  void Total(float* sum) const {
    std::fill(sum, sum + kWidth, 0.0f);
    bool first = true;
    for (int64_t level = 0; (count_ >> level) != 0; ++level) {
      if ((count_ >> level & 1) == 0) continue;
      if (first) {
        std::copy(levels_[level], levels_[level] + kWidth, sum);
      } else {
        AddColumns(levels_[level], sum);
      }
      first = false;
    }
  }

 private:
  // A chunk has at most kChunkRows / kBlock + 1 blocks.
  static constexpr int kLevels = 9;
  static_assert(AlongWalk::kChunkRows / kBlock + 1 < (1 << kLevels));
  int64_t count_ = 0;
  HWY_ALIGN float levels_[kLevels][kWidth];
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
