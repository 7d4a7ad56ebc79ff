// One work item of scan and the scratch memory it needs. Plain data, shared by all SIMD targets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/targets.h"

namespace attnd {

// (problem, batch row, kv head); `grad` is null in the forward.
struct ScanItem {
  const ScanParams* params = nullptr;
  const ScanProblem* problem = nullptr;
  const ScanGradProblem* grad = nullptr;
  int64_t b = 0, kv_head = 0;
  double seconds = 0;  // predicted, on one thread
};

// How an item walks its sequence. Keys [0, absorbed) are seen by every query of the walk; then step
// t pairs query first_query + t with key absorbed + t, which all later queries see, too. Queries
// before first_query see no key; keys at and beyond used_keys are seen by none.
struct ScanWalk {
  int64_t first_query = 0, end_query = 0;
  int64_t absorbed = 0, used_keys = 0;

  ScanWalk(const ScanParams& params, const ScanRow& row) {
    end_query = row.nq;
    if (row.nq <= 0 || row.nk <= 0) {
      first_query = end_query = std::max<int64_t>(row.nq, 0);
      return;
    }
    if (!params.causal) {
      absorbed = used_keys = row.nk;
      return;
    }
    first_query = std::clamp<int64_t>(-row.offset, 0, row.nq);
    absorbed = std::clamp<int64_t>(row.offset, 0, row.nk);
    used_keys = std::clamp<int64_t>(row.nq + row.offset, 0, row.nk);
    if (first_query == row.nq) absorbed = used_keys = 0;
  }
  int64_t steps() const { return end_query - first_query; }
};

// Keys and queries a block outside the causal triangle: the state's panels stay in L1.
constexpr int64_t kScanBlock = 64;
// And within: a triangle of C^2 / 2 pairs against an addition to the state, every C steps.
constexpr int64_t kCausalBlock = 32;
inline int64_t ScanBlock(const ScanParams& params) {
  return params.causal ? std::min(params.chunk, kCausalBlock) : kScanBlock;
}

// Where things lie in an item's scratch, in floats. Widths are rounded up to the widest vector
// (16 floats). Row pitches are an odd number of cache lines: a pitch that is a power of two would
// put a column of a matrix into few sets of L1.
struct ScanLayout {
  static constexpr int64_t kVector = 16;
  static int64_t Width(int64_t n) { return (n + kVector - 1) / kVector * kVector; }
  static int64_t Pitch(int64_t n) { return (Width(n) / kVector | 1) * kVector; }

  int64_t D, Dv;
  int64_t block;                      // steps at a time
  int64_t q_width, v_width;           // of rows of q, k and of v, out
  int64_t q_pitch, v_pitch, c_pitch;  // of rows of features, values, columns of a block

  // Offsets. [rows, D]: q k dphi; [rows, Dv]: v o dn; [D, rows]: kt; [Dv, rows]: vt; [rows, rows]:
  // m p; [D, Dv]: s; [Dv, D]: st; [D]: z sum x; [rows]: shifts, normalisers and factors of rows.
  int64_t q, k, v, o, kt, m, s, z, sum, q_shift, k_shift, row_d, row_shift, factor;
  int64_t dphi, dn, vt, p, st, x;
  // Kept by the backward from one sweep to the other. [group, queries]: to_num to_d lift;
  // [queries + 1]: shifts; [steps]: mixed.
  int64_t to_num, to_d, lift, shifts, mixed;
  int64_t queries;
  int64_t floats = 0;

  ScanLayout(const ScanItem& item) {
    const ScanProblem& problem = *item.problem;
    D = problem.q.shape[3];
    Dv = problem.v.shape[3];
    queries = problem.q.shape[2];
    const int64_t group = problem.q.shape[1] / problem.k.shape[1];
    block = ScanBlock(*item.params);
    const int64_t rows = kScanBlock;
    q_width = Width(D);
    v_width = Width(Dv);
    q_pitch = Pitch(D);
    v_pitch = Pitch(Dv);
    c_pitch = Pitch(rows);
    q = Take(rows * q_pitch);
    k = Take(rows * q_pitch);
    v = Take(rows * v_pitch);
    o = Take(rows * v_pitch);
    kt = Take(q_width * c_pitch);
    m = Take(rows * c_pitch);
    s = Take(q_width * v_pitch);
    z = Take(q_width);
    sum = Take(q_width);
    q_shift = Take(rows);
    k_shift = Take(rows);
    row_d = Take(rows);
    row_shift = Take(rows + 1);
    factor = Take(rows);
    dphi = dn = vt = p = st = x = to_num = to_d = lift = shifts = mixed = 0;
    if (item.grad == nullptr) return;
    dphi = Take(rows * q_pitch);
    dn = Take(rows * v_pitch);
    vt = Take(v_width * c_pitch);
    p = Take(rows * c_pitch);
    st = Take(v_width * q_pitch);
    x = Take(q_width);
    to_num = Take(group * queries);
    to_d = Take(group * queries);
    lift = Take(Lifts(*item.params) ? group * queries : 0);
    shifts = Take(queries + 1);
    mixed = Take(queries / block + 1);
  }

  // Whether gradients may need a factor beyond float32 (see ScanGrad).
  static bool Lifts(const ScanParams& params) {
    return params.map == FeatureMap::kExp && params.den == ScanDen::kOne;
  }

 private:
  int64_t Take(int64_t count) {
    const int64_t at = floats;
    floats += Width(count);
    return at;
  }
};

// The item's kernels of one instruction set. `scratch`: ScanLayout(item).floats floats, aligned to
// 64 bytes, of any content. They write every row of the item's outputs.
using ScanKernel = void(const ScanItem& item, float* scratch);
struct ScanKernels {
  ScanKernel* forward;
  ScanKernel* backward;
};
ScanKernels ScanKernelsOf(Isa isa);

}  // namespace attnd
