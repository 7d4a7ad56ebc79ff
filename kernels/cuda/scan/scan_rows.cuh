// What the walks of scan need besides: shifts of the map exp, states before segments, gradients of
// rows' sums, and rows that nothing reads. Bound by bytes, all of them.
#pragma once

#include "kernels/cuda/scan/scan_passes.h"
#include "kernels/cuda/scan/scan_walk.cuh"

namespace attnd::cuda {

constexpr int kScanThreads = 256;
constexpr int kScanWarps = kScanThreads / simt::kWarp;

// k_shift, q_shift = the largest element of each row; a warp a row. Blocks: of B (Hkv Nk + H Nq)
// rows.
__global__ void __launch_bounds__(kScanThreads)
    ScanRowMaxima(const __grid_constant__ Problems<ScanWork> problems) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  int64_t row = place.block * kScanWarps + threadIdx.x / simt::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
  const int64_t keys = w.B * w.Hkv * w.Nk;
  const bool is_key = row < keys;
  if (!is_key) row -= keys;
  const int64_t N = is_key ? w.Nk : w.Nq, heads = is_key ? w.Hkv : w.H;
  if (!is_key && row >= w.B * heads * N) return;
  const int64_t n = row % N, h = row / N % heads, b = row / N / heads;
  const ScanLine& line = w.lines[b];
  if (is_key ? n >= line.used_keys : n < line.first_query || n >= line.end_query) return;
  const ScanView& view = is_key ? w.k : w.q;
  float most = -INFINITY;
#pragma unroll 1
  for (int c = lane; c < w.D; c += simt::kWarp) {
    most = fmaxf(most, LoadAt(view, b * view.b + h * view.h + n * view.n + c * view.d));
  }
  for (int flip = 1; flip < simt::kWarp; flip *= 2) {
    most = fmaxf(most, __shfl_xor_sync(simt::kAllLanes, most, flip));
  }
  if (lane == 0) (is_key ? w.k_shift : w.q_shift)[row] = most;
}

// Largest of the values of threads up to this one, of the block's and of `carry`, which becomes the
// largest of all.
SIMT_FN float PrefixMax(float value, float* warp_most, float* carry) {
  const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / simt::kWarp;
  for (int distance = 1; distance < simt::kWarp; distance *= 2) {
    const float other = __shfl_up_sync(simt::kAllLanes, value, distance);
    if (lane >= distance) value = fmaxf(value, other);
  }
  __syncthreads();  // the last values have been read
  if (lane == simt::kWarp - 1) warp_most[warp] = value;
  __syncthreads();
  float all = *carry;
  for (int i = 0; i < kScanWarps; ++i) {
    if (i == warp) value = fmaxf(value, all);
    all = fmaxf(all, warp_most[i]);
  }
  *carry = all;
  return value;
}

// Positions of a launch in which a block walks along a line: many times what a launch takes.
constexpr int64_t kLinePart = int64_t{1} << 13;

// k_shift = the largest so far, of keys [first, first + kLinePart), those before being done. A
// block a line and kv head.
__global__ void __launch_bounds__(kScanThreads)
    ScanKeyShifts(const __grid_constant__ Problems<ScanWork> problems, int64_t first) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  simt::SharedTiles tiles;
  float* const warp_most = tiles.Take<float>(kScanWarps);
  const int64_t b = place.block / w.Hkv, g = place.block % w.Hkv;
  const int64_t keys = min(w.lines[b].used_keys, first + kLinePart);
  if (first >= keys) return;
  float carry = first == 0 ? -INFINITY : w.k_shift[w.Key(b, g, first - 1)];
  for (int64_t base = first; base < keys; base += kScanThreads) {
    const int64_t t = base + threadIdx.x;
    float* const at = w.k_shift + w.Key(b, g, t);
    const float most = PrefixMax(t < keys ? *at : -INFINITY, warp_most, &carry);
    if (t < keys) *at = most;
  }
}

// top_lift = the largest lift of a position's queries or of later ones, at least 0. Of kLinePart
// positions before the last `first`, which are done.
__global__ void __launch_bounds__(kScanThreads)
    ScanTopLifts(const __grid_constant__ Problems<ScanWork> problems, int64_t first) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  simt::SharedTiles tiles;
  float* const warp_most = tiles.Take<float>(kScanWarps);
  const int64_t b = place.block / w.Hkv, g = place.block % w.Hkv;
  const ScanLine& line = w.lines[b];
  float* const to = w.top_lift + place.block * (w.Nq + w.Nk);
  const int64_t end = min(line.positions, first + kLinePart);
  if (first >= end) return;
  float carry = first == 0 ? 0 : to[line.positions - first];
  for (int64_t base = first; base < end; base += kScanThreads) {
    const int64_t p = line.positions - 1 - base - threadIdx.x;
    const int64_t i = p < 0 ? -1 : QueryAt(line, p);
    float most = 0;
    for (int h = 0; h < w.group() && i >= 0; ++h) {
      most = fmaxf(most, w.lift[w.Row(b, g * w.group() + h, i)]);
    }
    most = PrefixMax(most, warp_most, &carry);
    if (p >= 0) to[p] = most;
  }
}

// decays = products over the keys of a segment. A block a segment and kv head.
__global__ void __launch_bounds__(kScanThreads)
    ScanDecays(const __grid_constant__ Problems<ScanWork> problems) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  const WalkPlace at = FindWalk(w, place.block, 1, false);
  const ScanLine& line = w.lines[at.b];
  const int64_t begin = max(int64_t{0}, at.segment * kScanSegment - line.lead);
  const int64_t end = min(line.used_keys, (at.segment + 1) * kScanSegment - line.lead);
  float* const to = w.decays + place.block * w.decay_width();
  if (w.k_shift != nullptr) {
    const float* shift = w.k_shift + w.Key(at.b, at.g, 0);
    if (threadIdx.x == 0) {
      to[0] =
          begin >= end ? 1 : ShiftFactor(begin == 0 ? -INFINITY : shift[begin - 1], shift[end - 1]);
    }
    return;
  }
  const ScanView& log = w.log_decay;
  for (int c = threadIdx.x; c < w.decay_width(); c += blockDim.x) {
    float sum = 0;
    for (int64_t t = begin; t < end; ++t) {
      sum += LoadAt(log, at.b * log.b + at.g * log.h + t * log.n + c * log.d);
    }
    to[c] = expf(sum);
  }
}

// States before segments from those of segments alone, forward from s0 or, of adjoints, backward
// from ds_out; a thread an element. Blocks: [line][kv head][kScanThreads elements].
constexpr int kCombineAhead = 8;  // loads under way
__global__ void __launch_bounds__(kScanThreads)
    ScanCombine(const __grid_constant__ Problems<ScanWork> problems, CombinePass pass) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  const int64_t parts = (w.state_floats() + kScanThreads - 1) / kScanThreads;
  const int64_t element = place.block % parts * kScanThreads + threadIdx.x;
  if (element >= w.state_floats()) return;
  const int64_t g = place.block / parts % w.Hkv, b = place.block / parts / w.Hkv;
  const ScanLine& line = w.lines[b];
  const int64_t k = element / (w.Dv + 1), n = element % (w.Dv + 1);
  const bool is_z = n == w.Dv;
  if (is_z && !w.has_z) return;
  const ScanView& s = pass.backward ? w.ds_out : w.s0;
  const ScanView& z = pass.backward ? w.dz_out : w.z0;
  float carry = 0;
  if (is_z && z.given) carry = LoadAt(z, b * z.b + g * z.h + k * z.n);
  if (!is_z && s.given) carry = LoadAt(s, b * s.b + g * s.h + k * s.n + n * s.d);
  const int64_t stride = w.Hkv * w.state_floats();
  float* const states = (pass.backward ? w.adjoints : w.states) + element + g * w.state_floats() +
                        w.StateSlot(b, line, 0) * stride;
  const bool decays = w.key_decays || w.feature_decays;
  const int64_t decay_stride = w.Hkv * w.decay_width();
  const float* const decay = w.decays + line.first_segment * decay_stride + g * w.decay_width() +
                             (w.feature_decays ? k : 0);
  const float* const lifts =
      w.top_lift == nullptr ? nullptr : w.top_lift + (b * w.Hkv + g) * (w.Nq + w.Nk);
  // The last segment's state forward, and the first one's adjoint, matter where they are results.
  const int64_t count = line.segments;
  for (int64_t base = 0; base < count; base += kCombineAhead) {
    float own[kCombineAhead], factor[kCombineAhead];
#pragma unroll
    for (int j = 0; j < kCombineAhead; ++j) {
      if (base + j >= count) continue;
      const int64_t segment = pass.backward ? count - 1 - base - j : base + j;
      own[j] = base + j + 1 < count || pass.final ? states[segment * stride] : 0;
      factor[j] = decays ? decay[segment * decay_stride] : 1;
      if (pass.backward && lifts != nullptr) {
        const int64_t begin = segment * kScanSegment, end = begin + kScanSegment;
        factor[j] *= expf((end < line.positions ? lifts[end] : 0) - lifts[begin]);
      }
    }
#pragma unroll
    for (int j = 0; j < kCombineAhead; ++j) {
      if (base + j >= count) continue;
      const int64_t segment = pass.backward ? count - 1 - base - j : base + j;
      states[segment * stride] = carry;
      carry = factor[j] * carry + own[j];
    }
  }
  if (!pass.backward) states[count * stride] = carry;
  if (!pass.final) return;
  const ScanView& s_to = pass.backward ? w.ds0 : w.s_out;
  const ScanView& z_to = pass.backward ? w.dz0 : w.z_out;
  if (is_z && z_to.given) {
    StoreFloat(z_to.data, z_to.dtype, b * z_to.b + g * z_to.h + k * z_to.n, carry);
  }
  if (!is_z && s_to.given) {
    StoreFloat(s_to.data, s_to.dtype, b * s_to.b + g * s_to.h + k * s_to.n + n * s_to.d, carry);
  }
}

// to_num, to_d, lift: what turns dout and dlse of a row into gradients of its sums; a warp a row.
__global__ void __launch_bounds__(kScanThreads)
    ScanRowFactors(const __grid_constant__ Problems<ScanWork> problems) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  const int64_t row = place.block * kScanWarps + threadIdx.x / simt::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
  const int64_t rows = w.B * w.H * w.Nq;
  if (row >= rows) return;
  const int64_t i = row % w.Nq, h = row / w.Nq % w.H, b = row / w.Nq / w.H, g = h / w.group();
  const ScanLine& line = w.lines[b];
  if (i < line.first_query || i >= line.end_query) return;
  const float d = w.row_d == nullptr ? 0 : w.row_d[row];
  float to_d = 0, lift = 0, to_num;
  if (w.dlse.given && !(d <= 0)) {
    to_d = LoadAt(w.dlse, b * w.dlse.b + h * w.dlse.h + i * w.dlse.n) / d;
  }
  if (w.den != ScanDen::kOne) {
    const float den = DenOf(w, d);
    to_num = den == 0 ? 0 : static_cast<float>(w.scale) / den;
    const float slope = to_num == 0 ? 0 : DenSlopeOf(w, d) / den;
    if (w.dots != nullptr && slope != 0) {
      float dots = 0;
      const int slices = DotSlices(w);
      for (int s = 0; s < slices; ++s) dots += w.dots[s * rows + row];
      to_d -= slope * (to_num * dots);
    }
  } else if (w.lift == nullptr) {
    to_num = static_cast<float>(w.scale);
  } else {
    bool is_blank = true;
#pragma unroll 1
    for (int c = lane; c < w.Dv && w.dout.given; c += simt::kWarp) {
      is_blank = is_blank &&
                 LoadAt(w.dout, b * w.dout.b + h * w.dout.h + i * w.dout.n + c * w.dout.d) == 0;
    }
    is_blank = __all_sync(simt::kAllLanes, is_blank ? 1 : 0) != 0;
    const int64_t key = min(i + line.ahead - line.lead, line.used_keys - 1);
    const double log_scale = log(fabs(w.scale)) + ShiftOfRow(w, b, h, i, g, key);
    if (!is_blank && fabs(log_scale) < INFINITY) {
      // Leaves room for the products with dN. A gradient of lse is divided by e^lift and must
      // survive.
      constexpr double kRoom = 60, kMostWithDlse = 60;
      double own = log_scale > kRoom ? log_scale - kRoom : 0;
      if (to_d != 0 && own > kMostWithDlse) own = kMostWithDlse;
      lift = static_cast<float>(own);
    }
    const double sign = w.scale < 0 ? -1 : 1;
    to_num = is_blank ? 0 : static_cast<float>(sign * exp(log_scale - lift));
    if (lift != 0) to_d *= expf(-lift);
  }
  if (lane != 0) return;
  w.to_num[row] = to_num;
  w.to_d[row] = to_d;
  if (w.lift != nullptr) w.lift[row] = lift;
}

// dbeta, or dlog_decay that features share: sums over slices in order, zeros where keys are not
// used. A thread a key.
__global__ void __launch_bounds__(kScanThreads)
    ScanSumSlices(const __grid_constant__ Problems<ScanWork> problems, bool of_beta) {
  const Place<ScanWork> place = FindPlace(problems);
  const ScanWork& w = place.problem;
  const int64_t number = place.block * kScanThreads + threadIdx.x, keys = w.B * w.Hkv * w.Nk;
  if (number >= keys) return;
  const int64_t t = number % w.Nk, g = number / w.Nk % w.Hkv, b = number / w.Nk / w.Hkv;
  const float* const parts = of_beta ? w.dbetas : w.dlogs;
  const int slices = WalkPlan(w, !of_beta).slices;
  float sum = 0;
  if (t < w.lines[b].used_keys) {
    for (int s = 0; s < slices; ++s) sum += parts[s * keys + number];
  }
  const ScanView& to = of_beta ? w.dbeta : w.dlog_decay;
  StoreFloat(to.data, to.dtype, b * to.b + g * to.h + t * to.n, sum);
}

// Rows that nothing reads or writes get `value`.
struct ScanBlank {
  ScanView to;
  const ScanLine* lines;
  int64_t heads, N;
  int width;
  bool of_queries;
  float value;
};
constexpr int64_t kBlankRows = 64;
// Blocks: [b][head][kBlankRows rows].
__global__ void __launch_bounds__(kScanThreads)
    ScanFillBlanks(const __grid_constant__ Problems<ScanBlank> problems) {
  const Place<ScanBlank> place = FindPlace(problems);
  const ScanBlank& blank = place.problem;
  const int64_t parts = (blank.N + kBlankRows - 1) / kBlankRows;
  const int64_t begin = place.block % parts * kBlankRows, end = min(blank.N, begin + kBlankRows);
  const int64_t h = place.block / parts % blank.heads, b = place.block / parts / blank.heads;
  const ScanLine& line = blank.lines[b];
  const int64_t used_begin = blank.of_queries ? line.first_query : 0;
  const int64_t used_end = blank.of_queries ? line.end_query : line.used_keys;
  const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
  for (int64_t n = begin + threadIdx.x / simt::kWarp; n < end; n += kScanWarps) {
    if (n >= used_begin && n < used_end) continue;
    const int64_t at = b * blank.to.b + h * blank.to.h + n * blank.to.n;
#pragma unroll 1
    for (int c = lane; c < blank.width; c += simt::kWarp) {
      StoreFloat(blank.to.data, blank.to.dtype, at + c * blank.to.d, blank.value);
    }
  }
}

}  // namespace attnd::cuda
