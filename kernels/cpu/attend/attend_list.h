// Attention over listed pairs (Pattern::is_listed) on the CPU: each query follows its own list, and
// in the backward each key the list of the queries that see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/core/integer.h"
#include "kernels/cpu/attend/attend_item.h"
#include "kernels/device/device.h"

namespace attnd {

class CpuDevice;
struct Cpu;

// Forward. A work item is a stretch of queries of one head with an online softmax each. Elements of
// a row lie in vector lanes. Keys are walked in blocks that stay in L2, so that rows which several
// queries of the item list come from memory once. Bound: 8 loads of 64 bytes a pair at D = Dv = 64,
// from L2; the products alone would take 8 multiply-adds.
DeviceStatus CpuAttendLists(CpuDevice& device, Stream& stream, const AttendArgs& args);

// Backward, P recomputed from lse. Queries own their dq and keys their dk and dv: both follow their
// lists, so that every sum has one owner and a fixed order. dbias has items of its own, one a
// plane. Scratch: 12 bytes a query of every head, and a fixed size a thread.
DeviceStatus CpuAttendListsGrad(CpuDevice& device, Stream& stream, const AttendGradArgs& args);

// Pairs that are worked on together.
constexpr int64_t kListChunk = 64;

// One head of one sequence.
struct ListHead {
  int64_t D = 0, Dv = 0, Nq = 0, Nk = 0;
  int64_t nq = 0;  // rows from there on see nothing, no sink either
  HeadRows q, k, v, out, lse, lse_low, dout, dlse;
  AttendParams params;
  HeadPlane bias;
  const float* slope = nullptr;  // of ALiBi; null: none
  float sink = -std::numeric_limits<float>::infinity();
  int64_t offset = 0;  // position of query row 0
  const Pattern* pattern = nullptr;

  static ListHead Of(const AttendProblem& p, const AttendParams& params, int64_t b, int64_t h);
};

// Floats of a packed row: whole vectors of any instruction set.
constexpr int64_t ListStride(int64_t width) { return RoundUp(width, 16); }

// Rows of an item, whose state fits into L2 beside a block of what they list, and a share of them
// where there are few. A function of the problem alone, since sums over items are its own.
constexpr int64_t ListItemRows(int64_t rows, int64_t floats_a_row) {
  constexpr int64_t kStateFloats = int64_t{1} << 18;
  const int64_t most = std::max<int64_t>(kStateFloats / floats_a_row, 64);
  return std::clamp<int64_t>(CeilDiv(rows, 8), 64, most);
}

// Listed rows of a block: they stay in L2 while an item's rows come by, which should find some
// pairs each.
inline int64_t ListBlockRows(const PairList& list, int64_t others, int64_t floats_a_row) {
  constexpr int64_t kBlockFloats = int64_t{1} << 18, kPairs = 8;
  const auto pairs = std::max<int64_t>(static_cast<int64_t>(list.columns.size()), 1);
  const int64_t rows = static_cast<int64_t>(list.begin.size()) - 1;
  const double for_pairs = static_cast<double>(kPairs) * static_cast<double>(others) *
                           static_cast<double>(rows) / static_cast<double>(pairs);
  return std::max({kBlockFloats / floats_a_row, static_cast<int64_t>(for_pairs), int64_t{1}});
}

// What the backward needs of each query of a head: lse (+inf where the query saw nothing), lse_low,
// and delta - dlse.
struct ListRowTerms {
  float *lse = nullptr, *lse_low = nullptr, *shift = nullptr;
};

struct ListGradHead {
  ListHead head;
  ListRowTerms rows;
  HeadRows dq, dk, dv;  // no data: not wanted
};

// What an item of queries adds to gradients of a head.
struct ListHeadSums {
  double slope = 0, sink = 0;
};

// The kernels for one instruction set; rows [first, first + rows) of a head.
struct ListGradKernels {
  void (*terms)(const ListGradHead&, int64_t first, int64_t rows, float* scratch, ListHeadSums*);
  void (*queries)(const ListGradHead&, int64_t first, int64_t rows, float* scratch, ListHeadSums*);
  void (*keys)(std::span<const ListGradHead>, int64_t first, int64_t rows, float* scratch);
  void (*bias)(const ListGradHead&, const HeadRows& plane, int64_t column, float* scratch);
};

// Scratch floats of a backward item of `rows` rows.
constexpr int64_t ListGradFloats(int64_t D, int64_t Dv, int64_t rows) {
  return (kListChunk + 2 * rows) * (ListStride(D) + ListStride(Dv)) + 2 * rows;
}

// Seconds on one thread, a pair in FLOPs of the peak: for each element of its rows, while the rows
// of a head fit into L2 (beyond, they come from farther away), and the rest. Constants:
// tests/bench/density.
struct ListPairFlops {
  double element = 0, rest = 0;
};
double ListSeconds(const Cpu& cpu, const AttendProblem& problem, const ListPairFlops& pair);

}  // namespace attnd
