#include "tests/plain/plain_device.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <variant>

#include "tests/plain/plain.h"
#include "tests/plain/plain_scan.h"

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

PlainTensor ReadGiven(const View& view) { return view.given() ? Read(view, view) : PlainTensor(); }

PlainScan ScanOf(const ScanParams& params, const ScanProblem& p) {
  return {.params = params,
          .q = Read(p.q, p.q),
          .k = Read(p.k, p.k),
          .v = Read(p.v, p.v),
          .seqs = {p.seqs.begin(), p.seqs.end()},
          .log_decay = ReadGiven(p.log_decay),
          .beta = ReadGiven(p.beta),
          .s0 = ReadGiven(p.s0),
          .z0 = AsRow(ReadGiven(p.z0))};
}

void PlainScanForward(const ScanArgs& args) {
  for (const ScanProblem& problem : args.problems) {
    const PlainScanOut result = Forward(ScanOf(args.params, problem));
    Write(result.out, problem.out);
    Write(result.lse, problem.lse);
    Write(result.s_out, problem.s_out);
    Write(AsRow(result.z_out), problem.z_out);
  }
}

void PlainScanGrad(const ScanGradArgs& args) {
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
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace

void PlainRun(const Launch& launch) {
  std::visit(Overloaded{
                 [](const AttendArgs& args) { PlainAttend(args); },
                 [](const AttendGradArgs& args) { PlainAttendGrad(args); },
                 [](const MergeArgs& args) { PlainMerge(args); },
                 [](const MergeGradArgs& args) { PlainMergeGrad(args); },
                 [](const ScanArgs& args) { PlainScanForward(args); },
                 [](const ScanGradArgs& args) { PlainScanGrad(args); },
                 [](const MatMulArgs& args) { PlainMatMul(args); },
                 [](const ElementwiseArgs& args) { PlainElementwise(args); },
                 [](const ReduceArgs& args) { PlainReduce(args); },
                 [](const SoftmaxArgs& args) { PlainSoftmax(args); },
                 [](const CumulativeArgs& args) { PlainCumulative(args); },
                 [](const LayerNormArgs& args) { PlainLayerNorm(args); },
                 [](const PoolArgs& args) { PlainPool(args); },
                 [](const DepthwiseConvArgs& args) { PlainDepthwiseConv(args); },
                 [](const DepthwiseConvGradArgs& args) { PlainDepthwiseConvGrad(args); },
                 [](const GatherRowsArgs& args) { PlainGatherRows(args); },
                 [](const ScatterRowsArgs& args) { PlainScatterRows(args); },
                 [](const SortArgs& args) { PlainSort(args); },
                 [](const FftArgs& args) { PlainRealFft2(args); },
             },
             launch);
}

DeviceStatus PlainDevice::Run(Stream& stream, Launch launch) {
  if (stream.is_dry()) {
    stream.work().seconds += 1e-6;
    return {};
  }
  const bool is_attend = std::holds_alternative<AttendArgs>(launch);
  const bool is_attend_grad = std::holds_alternative<AttendGradArgs>(launch);
  const bool is_scan = std::holds_alternative<ScanArgs>(launch);
  const bool is_scan_grad = std::holds_alternative<ScanGradArgs>(launch);
  calls_.attend += is_attend ? 1 : 0;
  calls_.attend_grad += is_attend_grad ? 1 : 0;
  calls_.scan += is_scan ? 1 : 0;
  calls_.scan_grad += is_scan_grad ? 1 : 0;
  calls_.other += is_attend || is_attend_grad || is_scan || is_scan_grad ? 0 : 1;
  PlainRun(launch);
  return {};
}

DeviceStatus PlainDevice::Upload(Stream& stream, void* destination,
                                 std::span<const std::span<const std::byte>> spans,
                                 std::shared_ptr<const void>) {
  if (stream.is_dry()) return {};
  auto* to = static_cast<std::byte*>(destination);
  for (const auto& span : spans) to = std::copy(span.begin(), span.end(), to);
  return {};
}

DeviceStatus PlainDevice::Download(Stream&, const void* source, std::span<std::byte> bytes) {
  std::copy_n(static_cast<const std::byte*>(source), bytes.size(), bytes.data());
  return {};
}

}  // namespace attnd::testing
