// What a device must be able to do: one pair of functions per primitive, on lists of problems.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/stream.h"
#include "kernels/core/view.h"
#include "kernels/ops/pattern.h"

namespace attnd {

// --- attend --------------------------------------------------------------------------------------
// out_i = sum_j P_ij v_j, P_ij = exp(s_ij - lse_i) on visible pairs, s_ij = scale * q_i . k_j
// (Vaswani et al. 2017, eq. 1; lse as in Dao et al. 2022). Query head h reads kv head h / (H/Hkv).

// What one batch row of a problem sees: queries [0, nq), keys [0, nk) and, of those, what the
// pattern shows (null: everything; on a dry stream always null: only the counts tell). The pattern
// covers at least nq x nk pairs, often the views' whole Nq x Nk: clip it to nq, nk. Rows at and
// beyond nq give out = 0, lse = -inf and no gradient, as do rows that see no key. Invisible pairs
// and rows beyond nq, nk contribute nothing, also when the tensors hold NaN or Inf there: they are
// selected away, never multiplied by zero.
struct AttendRow {
  int64_t nq = 0, nk = 0;
  std::shared_ptr<const Pattern> pattern;
  double visible_pairs = 0;  // of one head, for accounting and prediction
  double visible_tiles = 0;  // 64 x 64 tiles visited, of one head
};

struct AttendProblem {
  View q, k, v;  // [B,H,Nq,D] [B,Hkv,Nk,D] [B,Hkv,Nk,Dv], one float dtype, any strides
  View out;      // [B,H,Nq,Dv], dtype of q
  View lse;      // [B,H,Nq] float32, natural log
  std::span<const AttendRow> rows;  // B of them
};

struct AttendArgs {
  double scale = 1;
  std::span<const AttendProblem> problems;  // D, Dv and dtype equal in all of them
};

// Gradients given dout and dlse (gradient of lse; ignored where lse = -inf):
// dS = P * (dout v^T - delta + dlse), delta_i = dout_i . out_i; dq = scale dS k; dk = scale dS^T q;
// dv = P^T dout; P recomputed from lse.
struct AttendGradProblem {
  AttendProblem forward;  // with the out and lse that the forward wrote
  View dout;              // as out; not given(): zero
  View dlse;              // as lse; not given(): zero
  View dq, dk, dv;        // as q, k, v; fully overwritten. not given(): not wanted
};

struct AttendGradArgs {
  double scale = 1;
  std::span<const AttendGradProblem> problems;
};

// --- scan ----------------------------------------------------------------------------------------
// Linear attention (Katharopoulos et al. 2020, eq. 4-12): phi_q = map(q), phi_k = map(k);
// num_i = sum_j (phi_q,i . phi_k,j) v_j, d_i = sum_j phi_q,i . phi_k,j over visible j;
// out_i = num_i / (d_i + eps) if normalize, else scale * num_i. lse_i = log d_i.
enum class FeatureMap : uint8_t {
  kEluPlusOne,  // x + 1 for x > 0, else e^x
  kRelu,        // max(x, 0); derivative 0 at 0
  kReluSquared,
  kSquared,
  kAbs,  // derivative 0 at 0
  kIdentity,
  kExp,  // evaluated with shifts so that it cannot overflow; d without eps
  kSigmoid,
  kSilu,
  kGelu,  // erf form
};

// One batch row: queries [0, nq), keys [0, nk). causal: query i sees keys j <= i + offset.
struct ScanRow {
  int64_t nq = 0, nk = 0;
  int64_t offset = 0;
  double visible_pairs = 0;
};

struct ScanProblem {
  View q, k, v;  // [B,H,Nq,D] [B,Hkv,Nk,D] [B,Hkv,Nk,Dv]
  View out;      // [B,H,Nq,Dv]
  // [B,H,Nq] float32. -inf in rows that see no key; else NaN where d <= 0, but -inf where d = 0
  // with kExp, whose d can only underflow. A gradient of lse where d <= 0 is ignored.
  View lse;
  std::span<const ScanRow> rows;
};

struct ScanParams {
  FeatureMap map = FeatureMap::kEluPlusOne;
  bool causal = false;
  bool normalize = true;
  double eps = 1e-6;
  double scale = 1;    // > 0
  int64_t chunk = 64;  // most steps of a causal block, 1..1024; changes the result by rounding only
};

struct ScanArgs {
  ScanParams params;
  std::span<const ScanProblem> problems;
};

struct ScanGradProblem {
  ScanProblem forward;
  View dout, dlse;  // not given(): zero
  View dq, dk, dv;  // not given(): not wanted
};

struct ScanGradArgs {
  ScanParams params;
  std::span<const ScanGradProblem> problems;
};

// --- add -----------------------------------------------------------------------------------------
struct AddProblem {
  View a, b, sum;  // one shape and float dtype; sum may be a or b
};

// -------------------------------------------------------------------------------------------------
struct DeviceInfo {
  std::string name;             // "cpu" or "cuda:0": metric label, `device` field of requests
  std::string description;      // "AVX2, 2 threads": for people
  double peak_flops = 0;        // measured at start-up, float32 FLOP/s of the whole device
  double bytes_per_second = 0;  // measured at start-up, streaming read
  int64_t memory_bytes = 0;     // what may be used; 0: unknown
};

// Stateless apart from its device; thread safe. Every function runs on `stream`, takes scratch
// memory from its workspace only, adds its work to stream.work() and, on a dry stream, does no more
// than that: the very same allocations, the visible pairs and FLOPs, and the predicted seconds.
// Results do not depend on the number of threads, on the other problems of the list, or on the run.
// Errors: RESOURCE_EXHAUSTED when memory ends. Arguments were checked by ops.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& info() const = 0;

  [[nodiscard]] virtual absl::Status Attend(Stream& stream, const AttendArgs& args) = 0;
  [[nodiscard]] virtual absl::Status AttendGrad(Stream& stream, const AttendGradArgs& args) = 0;
  [[nodiscard]] virtual absl::Status Scan(Stream& stream, const ScanArgs& args) = 0;
  [[nodiscard]] virtual absl::Status ScanGrad(Stream& stream, const ScanGradArgs& args) = 0;
  [[nodiscard]] virtual absl::Status Add(Stream& stream, std::span<const AddProblem> problems) = 0;

  // Copies a tensor into device memory that the caller got from a workspace of this device, and is
  // how bytes enter: `spans` are the pieces of a payload in order, of any alignment.
  [[nodiscard]] virtual absl::Status Gather(Stream& stream, void* destination,
                                            std::span<const std::span<const std::byte>> spans) = 0;

  // Parallel launches so far; a test proves with it that a primitive launches once for a list.
  virtual int64_t launches() const { return 0; }
};

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
  std::string isa;  // "avx512", "avx2", "sse4"; empty: the best of this machine
};

// Errors: FAILED_PRECONDITION when the machine lacks the instructions. Measuring the peak takes
// about 50 ms.
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options);

}  // namespace attnd
