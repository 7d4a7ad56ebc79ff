#include "tests/plain/plain_scan.h"

#include <cassert>

#include "tests/plain/plain.h"

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

}  // namespace

template <>
void PlainRun(const ScanArgs& args) {
  for (const ScanProblem& problem : args.problems) {
    const PlainScanOut result = Forward(ScanOf(args.params, problem));
    Write(result.out, problem.out);
    Write(result.lse, problem.lse);
    Write(result.s_out, problem.s_out);
    Write(AsRow(result.z_out), problem.z_out);
  }
}

template <>
void PlainRun(const ScanGradArgs& args) {
  for (const ScanGradProblem& problem : args.problems) {
    const ScanProblem& f = problem.forward;
    View rows = f.q;  // [B,H,Nq,1]
    rows.shape.dims[3] = 1;
    const PlainScanGrads grads = Gradients(
        ScanOf(args.params, f), {Read(problem.dout, f.out), Read(problem.dlse, rows),
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

}  // namespace attnd::testing
