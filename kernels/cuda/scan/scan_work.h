// A problem of scan as its kernels get it: plain data. See scan_plan.h for who makes it.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"
#include "kernels/device/scan.h"

namespace attnd::cuda {

// [B,H,N,D] of any strides. Tensors of rank 3 have stride d = 0.
struct ScanView {
  void* data = nullptr;
  int64_t b = 0, h = 0, n = 0, d = 0;
  DType dtype = DType::kF32;
  bool given = false;
};

// A sequence as its kernels walk it: position p holds key p - lead and then query p - ahead, where
// there are such. Segments of kScanSegment positions start from states that are made before.
constexpr int kScanSegment = 256;
struct ScanLine {
  int64_t lead = 0, ahead = 0;
  int64_t used_keys = 0, first_query = 0, end_query = 0;
  int64_t positions = 0;
  int64_t first_segment = 0, segments = 0;  // counted through the problem; at least one
};

struct ScanWork {
  ScanView q, k, v, out, lse, log_decay, beta, s0, z0, s_out, z_out;
  ScanView dout, dlse, ds_out, dz_out, dq, dk, dv, dlog_decay, dbeta, ds0, dz0;
  const ScanLine* lines = nullptr;  // of each b
  int64_t B = 0, H = 0, Hkv = 0, Nq = 0, Nk = 0, segments = 0;
  int64_t most_segments = 1;  // of a line
  int D = 0, Dv = 0;
  // Scratch; null: not needed.
  // S and z before each segment of a line and after the last, and their gradients after each
  // segment: see StateSlot.
  float* states = nullptr;    // [segments + B,Hkv,D,Dv + 1]
  float* adjoints = nullptr;  // likewise
  // [2,B,Hkv,D,Dv + 1], delta: what a launch of the walk forward leaves to the next one, where
  // states are not kept. Two, since blocks that read z work beside the one that writes it.
  float* carries = nullptr;
  float* decays = nullptr;    // [segments,Hkv,1|D], products over each segment
  float* k_shift = nullptr;   // [B,Hkv,Nk], kExp: the largest key so far
  float* q_shift = nullptr;   // [B,H,Nq]
  float* row_d = nullptr;     // [B,H,Nq]
  float* dots = nullptr;      // [slices,B,H,Nq], dout . num
  float* to_num = nullptr;    // [B,H,Nq]
  float* to_d = nullptr;      // [B,H,Nq]
  float* lift = nullptr;      // [B,H,Nq]
  float* top_lift = nullptr;  // [B,Hkv,Nq + Nk], the largest of a position or of later ones
  float* errors = nullptr;    // [B,Hkv,Nk,Dv], delta: what a key adds
  float* dwrites = nullptr;   // [B,Hkv,Nk,Dv], beta times the gradient of that
  float* stored = nullptr;    // [B,Hkv,Nk,D], delta: S' dwrite
  float* flow = nullptr;      // [B,Hkv,Nq,D], the sum of phi_q dphi_q over the group
  float* dbetas = nullptr;    // [slices,B,Hkv,Nk]
  float* dlogs = nullptr;     // [slices,B,Hkv,Nk]
  double scale = 1;
  float offset = 0, eps = 0;
  FeatureMap map = FeatureMap::kIdentity;
  ScanDen den = ScanDen::kOne;
  bool delta = false;
  bool has_wide_chunks = true;  // the device has the shared memory of kWideChunkBytes
  bool has_z = false;           // whether the walk over columns carries z
  bool has_blank_queries = false, has_blank_keys = false;  // rows that no walk writes
  // Keys decay, by log_decay or by rises of the shift: all features alike, or each its own way.
  bool key_decays = false, feature_decays = false;

  __host__ __device__ int group() const { return static_cast<int>(H / Hkv); }
  __host__ __device__ int64_t state_floats() const { return int64_t{D} * (Dv + 1); }
  SIMT_FN int64_t Row(int64_t b, int64_t h, int64_t i) const { return (b * H + h) * Nq + i; }
  SIMT_FN int64_t Key(int64_t b, int64_t g, int64_t t) const { return (b * Hkv + g) * Nk + t; }
  SIMT_FN int64_t StateSlot(int64_t b, const ScanLine& line, int64_t segment) const {
    return line.first_segment + b + segment;
  }
  __host__ __device__ int decay_width() const { return feature_decays ? D : 1; }
};

}  // namespace attnd::cuda
