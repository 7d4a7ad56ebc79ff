// What the gradient of attend launches for one problem of a list, and the memory it takes. All of
// it follows from shapes, so that a dry run counts the same, but for rounds, of which patterns may
// need fewer (SetRounds).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_kernels.h"
#include "kernels/device/attend.h"

namespace attnd::cuda::attend_grad {

// Elements of the tiles in shared memory.
enum class GradType : uint8_t { kF32, kF16, kBF16 };
constexpr int kGradTypes = 3;

// Deals out scratch memory. Without memory it only counts, and gives null.
class GradMemory {
 public:
  explicit GradMemory(std::byte* base) : base_(base) {}
  template <class T>
  T* Take(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  int64_t bytes_ = 0;
};

// A gradient: dimensions of 1 repeat.
Plane GradientPlane(const View& view);
// Dense [..,heads,rows,width].
Plane FloatPlane(float* data, int64_t heads, int64_t rows, int64_t width);

struct GradPlan {
  // `alike`: how many problems it may stand for (AlikeProblems::most).
  GradPlan(const AttendGradProblem& problem, const AttendParams& params, bool is_dry,
           int64_t alike);
  // Visible tiles, at most: of a row of tiles of queries, of a row of tiles of keys or, in gather
  // orders, of those rows of a head's keys that a block has.
  struct LongestRows {
    int64_t of_query, of_keys;
  };
  // In how many launches passes over tiles go. Before Place. On a dry stream at least as many as
  // any problem of these shapes that does not gather has: memory follows from them.
  void SetRounds(const LongestRows& longest);
  // Of shapes and, where rows are gathered, of visible tiles.
  LongestRows LongestOfShapes() const;
  // Takes what the problem needs, and lists the sums and the zeros of it.
  void Place(GradMemory* memory);

  int64_t row_blocks() const { return heads() * CeilDiv64(Nq); }
  int64_t query_blocks() const;
  int64_t key_blocks() const;
  int64_t bias_blocks() const;  // of a round
  int64_t list_blocks(int64_t rows_of_heads, int64_t rows) const;
  int64_t heads() const { return B * H; }
  int64_t wide_query_blocks() const { return wide_queries ? heads() * data.query_tiles : 0; }
  int64_t wide_key_blocks() const { return wide_keys ? B * Hkv * data.key_tiles : 0; }
  // FLOPs of a pass over all pairs: `products` of D and Dv columns.
  double Flops(double d_products, double v_products) const;
  static int64_t CeilDiv64(int64_t n) { return (n + 63) / 64; }

  const AttendGradProblem& problem;
  const bool is_dry;
  const int64_t alike;
  // Pairs of a row of q, of k in lists, at most; 0: there are none.
  int64_t longest_query_list = 0, longest_key_list = 0;
  GradData data = {};
  GradType type = GradType::kF32;
  int64_t B, H, Hkv, Nq, Nk, Nk2, D, Dv;
  bool gathers = false, is_listed = false;
  bool needs_queries = false, needs_keys = false, needs_bias = false;
  int query_units = 0, key_units = 0;  // indices of kGradUnits
  size_t shared_bytes = 0;             // of a block over tiles
  // Whether a pass goes by wide tiles, which leave some to the other kernels.
  bool wide_queries = false, wide_keys = false;
  int wide_columns = 0;  // index of GradKernels::wide_queries
  size_t wide_query_bytes = 0, wide_key_bytes = 0;
  std::vector<GradParts> zeros, group_sums, sums;  // in the order in which they run
  std::vector<GradHeads> head_sums;

 private:
  bool Wants(const View& gradient) const;
  int64_t planned_shares_ = 1;  // of the bias, in all problems that it stands for
  bool wants_wide_queries_ = false, wants_wide_keys_ = false;  // but for the alignment of operands
  void ChooseType();
  void ChooseWide();
  void PlanQueries();
  void PlanKeys();
  void PlanBias();
  void ShareBias();
  void PlaceBias(GradMemory* memory);
  void PlaceCarries(GradMemory* memory);
  GradParts* PlaceSums(const View& gradient, int64_t heads, bool needs_floats, GradMemory* memory,
                       Plane* to);
  void Zero(const Plane& to, int64_t planes_b, int64_t planes_h, int64_t rows, int64_t width);
  void ZeroFloats(float* data, int64_t count);
  void SumHeads(const View& gradient, bool is_sinks);
};

}  // namespace attnd::cuda::attend_grad
