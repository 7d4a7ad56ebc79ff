// The problems of attend as kernels of both directions read them: plain data.
#pragma once

#include <cstdint>

#include "kernels/core/view.h"
#include "kernels/cuda/attend/pattern_data.h"
#include "kernels/cuda/simt.h"
#include "kernels/device/attend.h"

namespace attnd::cuda {

// A tensor [B,H,N] or [B,H,N,D], strides in elements. data null: not given (or a dry stream).
struct Plane {
  void* data;
  int64_t b, h, row, column;
  DType dtype;

  static Plane Of(const View& view) {
    return {view.data, view.stride[0], view.stride[1], view.stride[2], view.stride[3], view.dtype};
  }
  SIMT_FN int64_t Head(int64_t batch, int64_t head) const { return batch * b + head * h; }
};

// Elements of one head in device memory: row n begins at n * row.
struct HeadRows {
  const void* data;  // null: no tensor
  int64_t row;
  DType dtype;

  SIMT_FN static HeadRows Of(const Plane& plane, int64_t batch, int64_t head) {
    const int64_t size = plane.dtype == DType::kF32 ? 4 : 2;
    const char* data = static_cast<const char*>(plane.data);
    if (data != nullptr) data += plane.Head(batch, head) * size;
    return {data, plane.row, plane.dtype};
  }
  SIMT_FN int64_t At(int64_t n) const { return n * row; }
};

// See AttendSeq.
struct SeqData {
  int64_t nq, nk;
  int64_t offset;
  const PatternData* pattern;               // of all heads; null: everything is visible
  const PatternData* const* head_patterns;  // or one of each query head
};

// See AttendProblem and AttendParams.
struct AttendData {
  Plane q, k, v, out, lse, lse_low;
  Plane k2, v2;
  Plane bias, table, q_rel, r, row_weight;
  Plane alibi_slopes, sinks;  // [B,H]
  const SeqData* seqs;        // [B], in device memory
  int64_t B, H, group;        // query heads of a kv head
  int64_t Nq, Nk, Nk2;        // rows of q, of k, of k2
  int64_t L;                  // rows of r
  int D, Dv;
  Weighting weighting;
  bool cap_table;
  bool has_terms;          // scores change between product and weighting, other than by masks
  DType product_type;      // of the product of q and k: their own where both have the same 16 bits,
                           // whatever the tiles hold, so that all passes find the same scores
  float scale;             // AttendParams::scale
  float cap, inverse_cap;  // 0: off

  SIMT_FN bool is_softmax() const { return weighting == Weighting::kSoftmax; }
};

// On the host; all but seqs.
AttendData NewAttendData(const AttendParams& params, const AttendProblem& problem);

// Whether weights that are multiplied with 16-bit numbers keep two parts of 16 bits. Rounded to
// one, as in other kernels for tensor cores, they change the result by up to u times the sum of
// |weight value|, usually by as much as its own rounding. Two parts leave u^2, and cost one more
// product. It costs next to nothing where the result has few columns, and is hidden where operands
// take longer to arrive than to be multiplied: with a few hundred rows on either side. `columns`:
// of the result. On the host.
bool KeepsWeights(const AttendData& problem, int64_t columns);

// Which row each of the 64 rows of a tile is.
struct ChosenRows {
  const int32_t* listed;  // of each, -1: none; null: first, first + 1, ...
  int64_t first;          // >= 0
  int64_t count;          // the others, from this one on, are none

  // -1: none.
  SIMT_FN int64_t At(int i) const {
    if (i >= count) return -1;
    return listed == nullptr ? first + i : listed[i];
  }
};

// What a block works on: one query head of a sequence.
struct AttendHead {
  int64_t b, h, kv;
  int64_t nq, nk;         // rows that exist
  int64_t offset;         // position of query row 0
  int64_t queries, keys;  // slots
  const PatternData* pattern;
  const int32_t *query_rows, *key_rows;  // of slots; null: slot s is row s

  // The row of a slot; -1: none.
  SIMT_FN int64_t QueryRow(int64_t slot) const {
    if (slot >= queries) return -1;
    return query_rows == nullptr ? slot : query_rows[slot];
  }
  SIMT_FN int64_t KeyRow(int64_t slot) const {
    if (slot >= keys) return -1;
    return key_rows == nullptr ? slot : key_rows[slot];
  }
  // Of the tile of slots from `slot` on.
  SIMT_FN ChosenRows QueryRows(int64_t slot) const {
    return {query_rows == nullptr ? nullptr : query_rows + slot, slot, queries - slot};
  }
  SIMT_FN ChosenRows KeyRows(int64_t slot) const {
    return {key_rows == nullptr ? nullptr : key_rows + slot, slot, keys - slot};
  }
  SIMT_FN static AttendHead Of(const AttendData& p, int64_t b, int64_t h) {
    const SeqData& seq = p.seqs[b];
    AttendHead head = {b,      h,      h / p.group, seq.nq,  seq.nk, seq.offset,
                       seq.nq, seq.nk, nullptr,     nullptr, nullptr};
    head.pattern = seq.head_patterns == nullptr ? seq.pattern : seq.head_patterns[h];
    if (head.pattern == nullptr) return head;
    head.query_rows = head.pattern->query_rows;
    head.key_rows = head.pattern->key_rows;
    if (head.query_rows != nullptr) head.queries = head.pattern->Nq;
    if (head.key_rows != nullptr) head.keys = head.pattern->Nk;
    return head;
  }
};

// The visible tiles of a row: those of `side` of the head's pattern, or all `tiles`. Tile numbers
// below `tiles` alone.
class TileWalk {
 public:
  // From visible tile number `skip` of the row on, `count` of them. Of a side, row >= 0.
  SIMT_FN TileWalk(const TileRunRows* side, int64_t row, int64_t tiles, int64_t skip, int64_t count)
      : tiles_(static_cast<int32_t>(tiles)),
        left_(static_cast<int32_t>(count < INT32_MAX ? count : INT32_MAX)),
        mask_(TileRun::kFull),
        terms_(TileRun::kNoTerms) {
    if (side == nullptr) {
      index_ = static_cast<int32_t>(skip);
      end_ = tiles_;
    } else if (row < side->rows) {
      run_ = side->runs + side->begin[row];
      last_ = side->runs + side->begin[row + 1];
      Seek([skip](const TileRun& run) { return run.before + run.count <= skip; });
      if (run_ != last_) Open(static_cast<int32_t>(skip) - run_->before);
    }
    Cut();
  }
  // From tile `first` of the row on.
  SIMT_FN static TileWalk From(const TileRunRows* side, int64_t row, int64_t tiles, int64_t first) {
    TileWalk walk(nullptr, 0, tiles, first, INT64_MAX);
    if (side != nullptr) walk.Find(*side, row, static_cast<int32_t>(first));
    return walk;
  }
  SIMT_FN bool done() const { return index_ >= end_; }
  SIMT_FN int32_t index() const { return index_; }
  // All tiles from index() up to here are visible, with the same mask and terms.
  SIMT_FN int32_t end() const {
    const int32_t most = tiles_ - index_ < left_ ? tiles_ : index_ + left_;
    return end_ < most ? end_ : most;
  }
  SIMT_FN int mask() const { return mask_; }    // TileRun::kFull, or of PatternData::masks
  SIMT_FN int terms() const { return terms_; }  // TileRun::kNoTerms, or of PatternData::terms
  // REQUIRES: not done, count <= end() - index().
  SIMT_FN void Next(int32_t count = 1) {
    left_ -= count;
    index_ += count;
    if (index_ == end_ && run_ != last_) {
      ++run_;
      if (run_ != last_) Open(0);
    }
    Cut();
  }

 private:
  SIMT_FN void Open(int32_t skip) {
    index_ = run_->first + skip;
    end_ = run_->first + run_->count;
    mask_ = run_->mask;
    terms_ = run_->terms;
  }
  // To the first run that `is_before` does not hold of, by halves: a row may have as many runs as
  // tiles, and a walk of one step must not read them all.
  template <class F>
  SIMT_FN void Seek(const F& is_before) {
    for (int64_t left = last_ - run_; left > 0;) {
      const int64_t half = left / 2;
      const bool goes_on = is_before(run_[half]);
      run_ += goes_on ? half + 1 : 0;
      left = goes_on ? left - half - 1 : half;
    }
  }
  // Opens the first run that ends beyond tile `first`.
  SIMT_FN void Find(const TileRunRows& side, int64_t row, int32_t first) {
    index_ = end_ = 0;
    if (row >= side.rows) return;
    run_ = side.runs + side.begin[row];
    last_ = side.runs + side.begin[row + 1];
    Seek([first](const TileRun& run) { return run.first + run.count <= first; });
    if (run_ != last_) Open(run_->first < first ? first - run_->first : 0);
    Cut();
  }
  SIMT_FN void Cut() {
    if (left_ <= 0 || index_ >= tiles_) {
      index_ = end_ = 0;
      run_ = last_;
    }
  }

  int32_t tiles_, left_;
  int32_t index_ = 0, end_ = 0;
  const TileRun* run_ = nullptr;
  const TileRun* last_ = nullptr;
  int mask_, terms_;
};

}  // namespace attnd::cuda
