#include "tests/ops/plain_backend.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "tests/ops/plain.h"
#include "tests/ops/plain_scan.h"

namespace attnd::testing {
namespace {

// A float32 view of rank 3 or 4 as [B,H,N,D].
float* At(const View& view, int64_t b, int64_t h, int64_t n, int64_t d) {
  assert(view.dtype == DType::kF32 && view.shape.rank >= 3);
  const auto& s = view.stride;
  const int64_t last = view.shape.rank == 4 ? d * s[3] : 0;
  return view.As<float>() + b * s[0] + h * s[1] + n * s[2] + last;
}

// Calls visit(b, h, n, d) for every element.
template <class Visit>
void ForEach(const View& view, const Visit& visit) {
  const Shape& s = view.shape;
  for (int64_t b = 0; b < s[0]; ++b) {
    for (int64_t h = 0; h < s[1]; ++h) {
      for (int64_t n = 0; n < s[2]; ++n) {
        for (int64_t d = 0; d < s[3]; ++d) visit(b, h, n, d);
      }
    }
  }
}

// Zeros where nothing is given, in the shape of `like`.
PlainTensor Read(const View& view, const View& like) {
  const Shape& s = like.shape;
  PlainTensor plain(s[0], s[1], s[2], s[3]);
  if (!view.given()) return plain;
  ForEach(like, [&](auto... at) { plain.at(at...) = *At(view, at...); });
  return plain;
}

void Write(const PlainTensor& plain, const View& view) {
  if (!view.given()) return;
  ForEach(view, [&](auto... at) { *At(view, at...) = static_cast<float>(plain.at(at...)); });
}

// Credits 2 (D + Dv) FLOPs a pair and head, times `factor`.
template <class Problem>
void Credit(Stream& stream, const Problem& problem, double factor) {
  double pairs = 0;
  for (const auto& row : problem.rows) pairs += row.visible_pairs * row.count * problem.q.shape[1];
  const auto width = static_cast<double>(problem.q.shape[3] + problem.v.shape[3]);
  stream.work().visible_pairs += pairs;
  stream.work().flops += factor * 2 * width * pairs;
  stream.work().seconds += factor * 2 * width * pairs * 1e-9;
}

PlainTensor ReadGiven(const View& view) { return view.given() ? Read(view, view) : PlainTensor(); }

PlainScan ScanOf(const ScanParams& params, const ScanProblem& p) {
  return {.params = params,
          .q = Read(p.q, p.q),
          .k = Read(p.k, p.k),
          .v = Read(p.v, p.v),
          .rows = {p.rows.begin(), p.rows.end()},
          .log_decay = ReadGiven(p.log_decay),
          .beta = ReadGiven(p.beta),
          .s0 = ReadGiven(p.s0),
          .z0 = AsRow(ReadGiven(p.z0))};
}

}  // namespace

absl::Status PlainBackend::Attend(Stream& stream, const AttendArgs& args) {
  for (const AttendProblem& problem : args.problems) Credit(stream, problem, 1);
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.attend;
  PlainAttend(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::AttendGrad(Stream& stream, const AttendGradArgs& args) {
  for (const AttendGradProblem& problem : args.problems) Credit(stream, problem.forward, 2.5);
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.attend_grad;
  PlainAttendGrad(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Scan(Stream& stream, const ScanArgs& args) {
  for (const ScanProblem& problem : args.problems) Credit(stream, problem, 1);
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.scan;
  for (const ScanProblem& problem : args.problems) {
    const PlainScanOut result = Forward(ScanOf(args.params, problem));
    Write(result.out, problem.out);
    Write(result.lse, problem.lse);
    Write(result.s_out, problem.s_out);
    Write(AsRow(result.z_out), problem.z_out);
  }
  return absl::OkStatus();
}

absl::Status PlainBackend::ScanGrad(Stream& stream, const ScanGradArgs& args) {
  for (const ScanGradProblem& problem : args.problems) Credit(stream, problem.forward, 2);
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.scan_grad;
  for (const ScanGradProblem& problem : args.problems) {
    const ScanProblem& f = problem.forward;
    const PlainScanGrads grads = Gradients(
        ScanOf(args.params, f), {Read(problem.dout, f.out), Read(problem.dlse, f.lse),
                                 ReadGiven(problem.ds_out), AsRow(ReadGiven(problem.dz_out))});
    Write(grads.dq, problem.dq);
    Write(grads.dk, problem.dk);
    Write(grads.dv, problem.dv);
    Write(grads.dlog_decay, problem.dlog_decay);
    Write(grads.dbeta, problem.dbeta);
    Write(grads.ds0, problem.ds0);
    Write(AsRow(grads.dz0), problem.dz0);
  }
  return absl::OkStatus();
}

absl::Status PlainBackend::Merge(Stream& stream, const MergeArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainMerge(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::MergeGrad(Stream& stream, const MergeGradArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainMergeGrad(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::MatMul(Stream& stream, const MatMulArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainMatMul(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Elementwise(Stream& stream, const ElementwiseArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainElementwise(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Reduce(Stream& stream, const ReduceArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainReduce(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Softmax(Stream& stream, const SoftmaxArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainSoftmax(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Cumulative(Stream& stream, const CumulativeArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainCumulative(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::LayerNorm(Stream& stream, const LayerNormArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainLayerNorm(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Pool(Stream& stream, const PoolArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainPool(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::DepthwiseConv(Stream& stream, const DepthwiseConvArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainDepthwiseConv(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::DepthwiseConvGrad(Stream& stream, const DepthwiseConvGradArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainDepthwiseConvGrad(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::GatherRows(Stream& stream, const GatherRowsArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainGatherRows(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::ScatterRows(Stream& stream, const ScatterRowsArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainScatterRows(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Sort(Stream& stream, const SortArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainSort(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::RealFft2(Stream& stream, const FftArgs& args) {
  if (stream.is_dry()) return absl::OkStatus();
  ++calls_.other;
  PlainRealFft2(args);
  return absl::OkStatus();
}

absl::Status PlainBackend::Upload(Stream& stream, void* destination,
                                  std::span<const std::span<const std::byte>> spans) {
  if (stream.is_dry()) return absl::OkStatus();
  auto* to = static_cast<std::byte*>(destination);
  for (const auto& span : spans) to = std::copy(span.begin(), span.end(), to);
  return absl::OkStatus();
}

absl::Status PlainBackend::Download(Stream&, const void* source, std::span<std::byte> bytes) {
  std::copy_n(static_cast<const std::byte*>(source), bytes.size(), bytes.data());
  return absl::OkStatus();
}

}  // namespace attnd::testing
