// What the backward kernels of attend work on: a problem and its partial sums, scratch memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/core/integer.h"
#include "kernels/cpu/attend/attend_tile.h"
#include "kernels/device/device.h"

namespace attnd {

// The key tiles of a kv head are dealt to shares: the n-th stretch from the front and the n-th from
// the back to the n-th share, which balances causal patterns and keeps neighbours together; or one
// stretch to each.
struct KeyShares {
  int64_t tiles, shares;
  bool in_order = false;  // one stretch to each

  // `rows` of keys decide how many shares there are, `tiles` what is dealt.
  static int64_t Count(int64_t rows) { return std::clamp<int64_t>(CeilDiv(rows, kTile) / 8, 1, 4); }
  int64_t ShareOf(int64_t tile) const {
    if (in_order) return tile * shares / tiles;
    const int64_t stretch = tile * 2 * shares / tiles;
    return std::min(stretch, 2 * shares - 1 - stretch);
  }
};

// Key tiles that a query tile meets while it is packed; together they stay in L2 (0.8 MB). The
// relative term costs more at the ends of a row of tiles than keys from L3 do: twice as many.
constexpr int64_t kMaxKeyBlock = 16;
constexpr int64_t KeyBlock(int64_t D, int64_t Dv, bool has_relative) {
  const int64_t least = std::clamp<int64_t>(1024 / std::max<int64_t>(D + Dv, 1), 1, 8);
  return has_relative ? 2 * least : least;
}

// Floats from row to row of a packed operand of `width` columns: whole vectors of any instruction
// set, and no power of two.
constexpr int64_t PackedStride(int64_t width) { return RoundUp(width, 16) + 16; }

// float32 sums of the rows of one gradient that one share alone writes. Rows that are not touched
// are uninitialised.
struct PartialRows {
  float* sums = nullptr;       // [rows][stride]; null: not wanted
  uint8_t* touched = nullptr;  // [rows]
  int64_t rows = 0, stride = 0;

  bool wanted() const { return sums != nullptr; }
  void Clear() const {
    if (wanted()) std::memset(touched, 0, rows);
  }
  // A row to add to; zeros when it is new.
  float* Open(int64_t row) const {
    if (touched[row] == 0) std::fill_n(sums + row * stride, stride, 0.0f);
    touched[row] = 1;
    return sums + row * stride;
  }
};

// A gradient that is the sum of one PartialRows for each of (b, head, share), in this order.
struct GradSum {
  enum Kind { kDq, kDk, kDv, kSlopes, kSinks, kTable, kQRel, kR, kKinds };
  View out, tail;  // tail: its last rows (k2, v2). Neither given: not wanted
  int64_t tail_rows = 0;
  int64_t heads = 0, rows = 0, width = 0;
  int64_t first = 0, first_touched = 0;  // of all partial sums: floats, rows
  double factor = 1;

  int64_t stride() const { return RoundUp(width, 16); }
  // Whether it sums over b or heads as well, so that all kv heads of the problem come first.
  bool IsWhole(int64_t B) const {
    const auto repeats = [&](const View& v) {
      return v.given() && ((v.shape[0] == 1 && B > 1) || (v.shape[1] == 1 && heads > 1));
    };
    return repeats(out) || repeats(tail);
  }
};

// One problem of a list, ready to be worked on by shares.
struct GradTask {
  const AttendGradProblem* problem = nullptr;
  AttendParams params;
  int64_t B = 0, H = 0, Hkv = 0, group = 1, Nq = 0, Nk = 0, Nk2 = 0, D = 0, Dv = 0, shares = 1;
  int64_t key_block = 1;         // KeyBlock
  bool shares_in_order = false;  // KeyShares::in_order
  bool gathers = false;          // some sequence has a pattern with a gather order
  bool needs_scores = false;     // anything but dv: dS
  bool wants_dk = false, wants_dv = false;
  // The gradient of the bias. Where it repeats nothing and no soft cap lies between it and dS, the
  // shares of keys store it as they meet the pairs; else it is items of its own.
  bool wants_bias = false, stores_bias = false;
  // Of each sequence: whether dk and dv are stored where they lie, once for each row, instead of
  // being added up; known once there are patterns.
  std::vector<bool> stores_keys;
  std::array<GradSum, GradSum::kKinds> sums;
  float* floats = nullptr;  // of all problems
  uint8_t* touched = nullptr;

  const AttendSeq& Seq(int64_t b) const { return problem->forward.seqs[b]; }
  KeyShares Shares(int64_t tiles) const { return {tiles, shares, shares_in_order}; }
  bool softmax() const { return params.weighting == Weighting::kSoftmax; }
  PartialRows Of(GradSum::Kind kind, int64_t b, int64_t head, int64_t share) const {
    const GradSum& s = sums[kind];
    if (s.rows == 0 || floats == nullptr) return {};
    const int64_t row = ((b * s.heads + head) * shares + share) * s.rows;
    return {floats + s.first + row * s.stride(), touched + s.first_touched + row, s.rows,
            s.stride()};
  }
};

// A gradient is wanted in a dry run if it has a shape: data is null there.
inline bool Wants(const View& gradient, bool dry) {
  return gradient.given() && gradient.shape.size() > 0 && (dry || gradient.data != nullptr);
}

// The task of a problem, without memory.
GradTask TaskOf(const AttendGradProblem& problem, const AttendParams& params, bool dry);
// Sets stores_keys from the patterns of the task.
void FindStoredKeys(GradTask* task);

// One plane of a gradient that is a sum.
struct PlaneSum {
  GradSum::Kind kind;
  const View& out;
  int64_t first, count;  // rows of the partial sums
  int64_t b, h;          // of `out`
};

// One share of the keys of one kv head.
struct AttendShare {
  const GradTask* task = nullptr;
  int64_t b = 0, kv_head = 0, share = 0;
};

// A rectangle of the gradient of bias that one item owns: tiles of queries and keys of one of its
// planes.
struct BiasShare {
  const GradTask* task = nullptr;
  int64_t b = 0, h = 0;  // of dbias
  int64_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
};

// A matrix in scratch memory as packed rows of `stride` floats.
struct Packed {
  float* data = nullptr;
  int64_t stride = 0, width = 0;
  float* Row(int64_t i) const { return data + i * stride; }
};

// The scratch of one thread. With base null only `floats` is computed.
struct GradScratch {
  struct Keys {
    Packed k, kt, vt, dk, dv;  // [key][D] [D][key] [Dv][key] [key][D] [key][Dv]
  };
  std::array<Keys, kMaxKeyBlock> keys;
  Packed q, dout, dq;       // [query][..]
  Packed weights, dscores;  // [query][key]: S then P; dP then dS
  // Columns beyond a tile of keys that products along diagonals of either may reach.
  static constexpr int64_t kBeyond = 32;
  Packed space;          // rows of any operand
  Packed q_rel, dq_rel;  // [query][D]
  // Of the relative term: kTile rows of r, the farthest first, [64][D] [D][64]; gradients of such.
  struct Strip {
    Packed r, rt;
  };
  static constexpr int64_t kMaxStrips = kMaxKeyBlock + 1;
  absl::InlinedVector<Strip, kMaxStrips> strips;
  Packed dr;
  Packed constants, late_table;  // [query][key]
  Packed dbias;                  // [query][key]
  int64_t floats = 0;

  GradScratch(const GradTask& task, float* base) {
    const int64_t D = task.D, Dv = task.Dv;
    const auto take = [&](int64_t rows, int64_t width, int64_t stride) {
      float* data = base == nullptr ? nullptr : base + floats;
      floats += RoundUp(rows * stride, 16);
      return Packed{data, stride, width};
    };
    const auto rows = [&](int64_t count, int64_t width) {
      return take(count, width, PackedStride(width));
    };
    for (int64_t i = 0; i < task.key_block; ++i) {
      keys[i] = {rows(kTile, D), rows(D, kTile), rows(Dv, kTile), rows(kTile, D), rows(kTile, Dv)};
    }
    q = rows(kTile, D);
    dout = rows(kTile, Dv);
    dq = rows(kTile, D);
    const bool has_relative = task.problem->forward.terms.r.given();
    // With the relative term there are scores to the left and to the right of a tile.
    const auto scores = [&](int64_t left, int64_t right) {
      const int64_t stride = has_relative ? left + kTile + right : kTile;
      const Packed all = take(kTile, kTile, stride);
      const bool moves = has_relative && all.data != nullptr;
      return Packed{moves ? all.data + left : all.data, stride, kTile};
    };
    weights = scores(kBeyond, kTile);
    dscores = scores(kTile, kBeyond);
    constants = take(kTile, kTile, kTile);
    const bool is_late = task.problem->forward.terms.table.given() && !task.params.cap_table;
    late_table = take(is_late ? kTile : 0, kTile, kTile);
    space = rows(kTile, std::max(D, Dv));
    if (has_relative) {
      q_rel = rows(kTile, D);
      dq_rel = rows(kTile, D);
      dr = rows(kTile, D);
      for (int64_t i = 0; i <= task.key_block; ++i) {
        strips.push_back({rows(kTile, D), rows(D, kTile)});
      }
    }
    if (task.wants_bias && !task.stores_bias) dbias = take(kTile, kTile, kTile);
  }
};

// The kernels for one instruction set.
struct GradKernels {
  void (*keys)(const AttendShare&, float* scratch);
  void (*bias)(const BiasShare&, float* scratch);
  void (*sum)(const GradTask&, const PlaneSum&, float* scratch);
};

}  // namespace attnd
