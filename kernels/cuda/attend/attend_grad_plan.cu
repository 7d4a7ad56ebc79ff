#include "kernels/cuda/attend/attend_grad_plan.h"

#include <algorithm>

#include "kernels/cuda/attend/attend_grad_pair.cuh"
#include "kernels/cuda/attend/attend_grad_wide_shared.h"
#include "kernels/cuda/attend/device_pattern.h"
#include "kernels/cuda/attend/list_lengths.h"

namespace attnd::cuda::attend_grad {
namespace {

// Two blocks of an H100's processor: one has too few warps to hide what they wait for.
constexpr size_t kMostShared = size_t{112} << 10;

size_t SharedBytesOf(GradType type, int chunks, bool has_relative) {
  return type == GradType::kF32 ? GradShared<float>::Bytes(chunks, has_relative)
                                : GradShared<simt::f16>::Bytes(chunks, has_relative);
}

int PartsOf(int units, int of_block) { return std::max(1, (units + of_block - 1) / of_block); }

}  // namespace

Plane GradientPlane(const View& view) {
  Plane plane = Plane::Of(view);
  int64_t* const strides[] = {&plane.b, &plane.h, &plane.row, &plane.column};
  for (int i = 0; i < view.shape.rank && i < 4; ++i) {
    if (view.shape[i] == 1) *strides[i] = 0;
  }
  return plane;
}

Plane FloatPlane(float* data, int64_t heads, int64_t rows, int64_t width) {
  return {data, heads * rows * width, rows * width, width, 1, DType::kF32};
}

GradPlan::GradPlan(const AttendGradProblem& grad, const AttendParams& params, bool dry,
                   int64_t number)
    : problem(grad), is_dry(dry), alike(number) {
  const AttendProblem& f = grad.forward;
  B = f.q.shape[0], H = f.q.shape[1], Hkv = f.k.shape[1];
  Nq = f.q.shape[2], Nk = f.k.shape[2], Nk2 = f.terms.k2.given() ? f.terms.k2.shape[2] : 0;
  D = f.q.shape[3], Dv = f.v.shape[3];
  gathers = f.terms.k2.given();
  for (const AttendSeq& seq : f.seqs) {
    gathers = gathers || seq.gathers;
    is_listed = is_listed || seq.is_listed;
  }
  data.a = NewAttendData(params, f);
  data.dout = Plane::Of(grad.dout);
  data.dlse = Plane::Of(grad.dlse);
  data.columns = static_cast<int>(CeilDiv64(D));
  data.v_columns = static_cast<int>(CeilDiv64(Dv));
  ChooseType();
  const int chunks = data.columns + data.v_columns;
  const auto is_exact = [&](const View& first, const View& second, int64_t width) {
    const bool is_float = (Wants(first) && first.dtype == DType::kF32) ||
                          (Wants(second) && second.dtype == DType::kF32);
    return KeepsWeights(data.a, width) || (type != GradType::kF32 && is_float);
  };
  data.exact_dq = is_exact(grad.dq, {}, D);
  data.exact_dk = is_exact(grad.dk, grad.dterms.k2, D);
  data.exact_dv = is_exact(grad.dv, grad.dterms.v2, Dv);
  // Tiles of the relative term take turns with the others.
  const bool has_relative = f.terms.r.given();
  data.resident = !has_relative && SharedBytesOf(type, chunks, false) <= kMostShared;
  shared_bytes = SharedBytesOf(type, data.resident ? chunks : 1, has_relative);
  data.query_rounds = data.key_rounds = 1;
  PlanQueries();
  PlanKeys();
  PlanBias();
  ChooseWide();
  longest_query_list = LongestListOfQueries(f, is_dry);
  longest_key_list = LongestListOfKeys(f, is_dry);
}

bool GradPlan::Wants(const View& gradient) const {
  return gradient.given() && gradient.shape.size() > 0 && (is_dry || gradient.data != nullptr);
}

void GradPlan::ChooseType() {
  const AttendProblem& f = problem.forward;
  const View* const operands[] = {&f.q, &f.k, &f.v, &f.terms.k2, &f.terms.v2, &problem.dout};
  const auto all_are = [&](DType dtype) {
    return std::all_of(std::begin(operands), std::end(operands),
                       [&](const View* view) { return !view->given() || view->dtype == dtype; });
  };
  // The products of the relative term are of float32, as in the forward.
  if (!f.terms.r.given() && all_are(DType::kF16)) type = GradType::kF16;
  if (!f.terms.r.given() && all_are(DType::kBF16)) type = GradType::kBF16;
  const int64_t size = type == GradType::kF32 ? 4 : 2;
  data.vectors = (type != GradType::kF32 || all_are(DType::kF32)) &&
                 std::all_of(std::begin(operands), std::end(operands), [&](const View* view) {
                   if (!view->given()) return true;
                   // Where operands will lie is not known on a dry stream; wide tiles take most.
                   bool aligned = is_dry || reinterpret_cast<uintptr_t>(view->data) % 16 == 0;
                   for (int i = 0; i < 3; ++i) aligned &= view->stride[i] * size % 16 == 0;
                   return aligned;
                 });
}

void GradPlan::PlanQueries() {
  const AttendTermGrads& d = problem.dterms;
  data.query_first = Wants(problem.dq) ? data.columns : 0;
  data.query_second = Wants(d.q_rel) ? data.columns : 0;
  const int units = data.query_first + data.query_second;
  query_units = units > kGradUnits[0] ? 1 : 0;
  data.query_parts = PartsOf(units, kGradUnits[query_units]);
  data.query_tiles = std::max<int64_t>(CeilDiv64(Nq), 1);
  for (const AttendSeq& seq : problem.forward.seqs) {
    for (int64_t h = 0; h < (seq.head_patterns.empty() ? 1 : H); ++h) {
      const Pattern* pattern = seq.Of(h);
      if (pattern == nullptr) continue;
      if (!pattern->query_rows.empty()) {
        data.query_tiles = std::max(data.query_tiles, CeilDiv64(pattern->Nq));
      }
    }
  }
  if (Wants(d.r)) {
    data.query_shares = static_cast<int>(std::clamp<int64_t>(CeilDiv64(Nq), 1, 8));
  }
  const Shape whole = {B, H, Nq, Nk};
  const bool stores_bias = Wants(d.bias) && !gathers && !is_listed && d.bias.shape == whole;
  needs_queries = units > 0 || Wants(d.alibi_slopes) || Wants(d.table) || Wants(d.r) || stores_bias;
  needs_bias = Wants(d.bias) && !stores_bias;
  data.bias_in_order = !gathers;
}

void GradPlan::PlanKeys() {
  const AttendTermGrads& d = problem.dterms;
  data.key_first = Wants(problem.dk) || Wants(d.k2) ? data.columns : 0;
  data.key_second = Wants(problem.dv) || Wants(d.v2) ? data.v_columns : 0;
  const int units = data.key_first + data.key_second;
  needs_keys = units > 0;
  key_units = units > kGradUnits[0] ? 1 : 0;
  data.key_parts = PartsOf(units, kGradUnits[key_units]);
  data.key_tiles = CeilDiv64(Nk);
  if (gathers)
    data.key_shares = static_cast<int>(
        std::clamp<int64_t>(CeilDiv64(Nk + Nk2), 1, DevicePattern::kMostKeyShares));
}

void GradPlan::ChooseWide() {
  const bool fits = type != GradType::kF32 && !data.a.has_terms && !gathers && !is_listed &&
                    std::max(D, Dv) <= 128 && D % 8 == 0 && Dv % 8 == 0 && problem.dout.given();
  wants_wide_queries_ = fits && data.query_first > 0 && data.query_second == 0 && !data.exact_dq;
  wants_wide_keys_ =
      fits && data.key_first > 0 && data.key_second > 0 && !data.exact_dk && !data.exact_dv;
  wide_queries = wants_wide_queries_ && data.vectors;
  wide_keys = wants_wide_keys_ && data.vectors;
  wide_columns = std::max(D, Dv) <= 64 ? 0 : 1;
  using T = simt::bf16;
  wide_query_bytes = wide_columns == 0 ? WideShared<T, GradPass::kQueries, 64>::Bytes()
                                       : WideShared<T, GradPass::kQueries, 128>::Bytes();
  wide_key_bytes = wide_columns == 0 ? WideShared<T, GradPass::kKeys, 64>::Bytes()
                                     : WideShared<T, GradPass::kKeys, 128>::Bytes();
}

void GradPlan::Zero(const Plane& to, int64_t planes_b, int64_t planes_h, int64_t rows,
                    int64_t width) {
  zeros.push_back({.B = planes_b, .H = planes_h, .to = to, .rows = rows, .width = width});
}

void GradPlan::ZeroFloats(float* floats, int64_t count) {
  Zero(FloatPlane(floats, 1, 1, count), 1, 1, 1, count);
}

// Where a gradient [B,heads,rows,width] of one head goes: to itself (null), or to sums that are
// added up.
GradParts* GradPlan::PlaceSums(const View& gradient, int64_t heads, bool needs_floats,
                               GradMemory* memory, Plane* to) {
  const int64_t rows = gradient.shape[2], width = gradient.shape[3];
  const bool repeats = gradient.shape[0] != B || gradient.shape[1] != heads;
  if (!repeats && (!needs_floats || gradient.dtype == DType::kF32)) {
    *to = GradientPlane(gradient);
    if (gathers || needs_floats) Zero(*to, B, heads, rows, width);
    return nullptr;
  }
  auto* floats = memory->Take<float>(B * heads * rows * width);
  *to = FloatPlane(floats, heads, rows, width);
  ZeroFloats(floats, B * heads * rows * width);
  sums.push_back({.parts = floats,
                  .B = B,
                  .H = heads,
                  .count = 1,
                  .all_rows = rows,
                  .to = GradientPlane(gradient),
                  .rows = rows,
                  .width = width,
                  .sums_b = gradient.shape[0] != B,
                  .sums_h = gradient.shape[1] != heads,
                  .factor = 1});
  return &sums.back();
}

GradPlan::LongestRows GradPlan::LongestOfShapes() const {
  const int64_t query_tiles = CeilDiv64(Nq), key_tiles = CeilDiv64(Nk + Nk2);
  if (!gathers) return {key_tiles, query_tiles};
  double tiles = 0;
  for (const AttendSeq& seq : problem.forward.seqs) tiles = std::max(tiles, seq.visible_tiles);
  return {key_tiles, DivideUp(static_cast<int64_t>(tiles), data.key_shares)};
}

void GradPlan::SetRounds(const LongestRows& longest) {
  if (is_listed) return;
  // Pairs of tiles of up to 128 columns in a few milliseconds, by the rates that an H200 has shown;
  // with the relative term an ESTIMATE.
  const int64_t usual = problem.forward.terms.r.given() ? 16 : type == GradType::kF32 ? 32 : 256;
  const int64_t wide = DivideUp(std::max(data.columns, data.v_columns), 2);
  data.round_pairs = std::max<int64_t>(usual / wide, 1);
  const auto rounds = [&](int64_t rows, int64_t pairs) {
    return std::max<int64_t>(DivideUp(rows * pairs, data.round_pairs), 1);
  };
  // In gather orders whole rows of tiles of queries: sums of their gradients take memory, and how
  // many tiles there are a plan does not know.
  const int64_t of_block =
      data.query_shares > 0 ? DivideUp(data.query_tiles, data.query_shares) : 1;
  if (!gathers) data.query_rounds = rounds(of_block, longest.of_query);
  data.key_rounds = rounds(H / Hkv, longest.of_keys);
}

void GradPlan::SumHeads(const View& gradient, bool is_sinks) {
  head_sums.push_back({.to = GradientPlane(gradient),
                       .is_sinks = is_sinks,
                       .sums_b = gradient.shape[0] != B,
                       .sums_h = gradient.shape[1] != H});
}

void GradPlan::Place(GradMemory* memory) {
  zeros.clear(), group_sums.clear(), sums.clear(), head_sums.clear();
  const AttendTermGrads& d = problem.dterms;
  const int64_t all_rows = B * H * Nq;
  data.rows = memory->Take<GradRow>(all_rows);
  if (type == GradType::kF16 && !is_listed) {
    data.tile_sizes = memory->Take<float>(B * H * CeilDiv64(Nq));
    data.head_sizes = memory->Take<float>(B * H);
  }
  // Memory does not follow from where operands lie.
  if (wants_wide_queries_) {
    auto* careful = memory->Take<int32_t>(heads() * data.query_tiles * data.query_rounds);
    if (wide_queries) data.careful_queries = careful;
  }
  if (wants_wide_keys_) {
    auto* careful = memory->Take<int32_t>(B * Hkv * data.key_tiles * data.key_rounds);
    if (wide_keys) data.careful_keys = careful;
  }
  const bool adds_queries = data.query_rounds > 1, adds_keys = data.key_rounds > 1;
  const auto rows = [&](const View& gradient, int64_t of_heads, bool adds, const int32_t* careful,
                        int64_t rounds, Plane* to) {
    if (!Wants(gradient)) return;
    GradParts* parts = PlaceSums(gradient, of_heads, adds, memory, to);
    if (parts != nullptr) parts->careful = careful, parts->rounds = rounds;
  };
  rows(problem.dq, H, adds_queries, data.careful_queries, data.query_rounds, &data.dq);
  if (Wants(d.q_rel)) PlaceSums(d.q_rel, H, adds_queries, memory, &data.dq_rel);
  if (Wants(d.table)) PlaceSums(d.table, H, true, memory, &data.dtable);
  if (Wants(d.alibi_slopes)) {
    data.slope_sums = memory->Take<float>(all_rows);
    ZeroFloats(data.slope_sums, all_rows);
    SumHeads(d.alibi_slopes, false);
  }
  if (Wants(d.sinks)) SumHeads(d.sinks, true);
  if (Wants(d.r)) {
    const int64_t L = data.a.L, count = B * H * data.query_shares * L * D;
    data.dr_sums = memory->Take<float>(count);
    ZeroFloats(data.dr_sums, count);
    sums.push_back({.parts = data.dr_sums,
                    .B = B,
                    .H = H,
                    .count = data.query_shares,
                    .all_rows = L,
                    .to = GradientPlane(d.r),
                    .rows = L,
                    .width = D,
                    .sums_b = d.r.shape[0] != B,
                    .sums_h = d.r.shape[1] != H,
                    .factor = data.a.scale});
  }
  if (!gathers) {
    rows(problem.dk, Hkv, adds_keys, data.careful_keys, data.key_rounds, &data.dk);
    rows(problem.dv, Hkv, adds_keys, data.careful_keys, data.key_rounds, &data.dv);
  }
  const auto keys = [&](const View& first, const View& second, int64_t width, float** to) {
    const int64_t rows = Nk + Nk2, count = B * Hkv * data.key_shares * rows * width;
    *to = memory->Take<float>(count);
    ZeroFloats(*to, count);
    GradParts parts = {.parts = *to,
                       .B = B,
                       .H = Hkv,
                       .count = data.key_shares,
                       .all_rows = rows,
                       .width = width,
                       .factor = 1};
    for (const View* view : {&first, &second}) {
      if (!Wants(*view)) continue;
      parts.first = view == &first ? 0 : Nk;
      parts.rows = view == &first ? Nk : Nk2;
      parts.to = GradientPlane(*view);
      parts.sums_b = view->shape[0] != B, parts.sums_h = view->shape[1] != Hkv;
      sums.push_back(parts);
    }
  };
  PlaceCarries(memory);
  if (gathers && data.key_first > 0) keys(problem.dk, d.k2, D, &data.dk_sums);
  if (gathers && data.key_second > 0) keys(problem.dv, d.v2, Dv, &data.dv_sums);
  if (!Wants(d.bias)) return;
  if (needs_bias) return PlaceBias(memory);
  data.dbias = GradientPlane(d.bias);
  Zero(data.dbias, B, H, Nq, Nk);
}

// A float32 gradient carries its own sums.
void GradPlan::PlaceCarries(GradMemory* memory) {
  const auto carry = [&](const View& gradient, const Plane& to, int64_t longest, Plane* place) {
    if (!Wants(gradient) || longest <= kListPairs) return;
    *place = to;
    if (gradient.dtype == DType::kF32) return;
    const Shape& s = gradient.shape;
    *place = FloatPlane(memory->Take<float>(s.size()), s[1], s[2], s[3]);
  };
  carry(problem.dq, data.dq, longest_query_list, &data.dq_carry);
  carry(problem.dk, data.dk, longest_key_list, &data.dk_carry);
  carry(problem.dv, data.dv, longest_key_list, &data.dv_carry);
}

int64_t GradPlan::query_blocks() const {
  if (!needs_queries || Nq == 0) return 0;
  const int64_t tiles = data.query_shares > 0 ? data.query_shares : data.query_tiles;
  return B * H * tiles * data.query_parts;
}

int64_t GradPlan::key_blocks() const {
  if (!needs_keys) return 0;
  const int64_t tiles = data.key_shares > 0 ? data.key_shares : data.key_tiles;
  return B * Hkv * tiles * data.key_parts;
}

int64_t GradPlan::list_blocks(int64_t heads_of_rows, int64_t rows) const {
  constexpr int64_t kWarps = 4;
  return B * heads_of_rows * ((rows + kWarps - 1) / kWarps);
}

double GradPlan::Flops(double d_products, double v_products) const {
  double pairs = 0;
  for (const AttendSeq& seq : problem.forward.seqs) {
    const double of_tiles = is_listed ? seq.visible_pairs : seq.visible_tiles * kTile * kTile;
    pairs += of_tiles * static_cast<double>(seq.count * H);
  }
  return 2 * pairs * (d_products * static_cast<double>(D) + v_products * static_cast<double>(Dv));
}

}  // namespace attnd::cuda::attend_grad
