// Attention, scans and matrix products on the CUDA device over arrays of which one dimension goes
// beyond 2^32 elements.
#include <gtest/gtest.h>

#include "tests/cpu/attend_case.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"
#include "tests/cpu/scan_case.h"
#include "tests/cuda/far_strides.h"

// To the sanitizers such an array is 16 GiB of memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace attnd::testing {
namespace {

TEST_F(FarStridesCuda, Attend) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TermsSizes sizes{.B = 2, .H = 2, .Hkv = 2, .Nq = 5, .Nk = 70, .D = 16, .Dv = 8};
    sizes.has_pattern = false;
    sizes.q = sizes.k = sizes.v = sizes.out = dtype;
    const TermsCase c(sizes, 1);
    ExpectSameBits(AttendArgs{.params = sizes.params, .problems = {c.Problem()}}, 3);
  }
  const TermsSizes listed{.B = 2, .H = 2, .Hkv = 2, .Nq = 5, .Nk = 70, .listed = 9, .bias = true};
  const TermsCase c(listed, 1);
  AttendProblem problem = c.Problem();
  CountBytes(&problem.seqs);
  ExpectSameBits(AttendArgs{.params = listed.params, .problems = {problem}}, 3, /*dense=*/{},
                 Planned::kAtLeast);
}

TEST_F(FarStridesCuda, AttendGrad) {
  for (const Slots slots : {Slots::kNone, Slots::kListed}) {
    const GradCase c({.B = 2,
                      .H = 2,
                      .Hkv = 2,
                      .Nq = 5,
                      .Nk = 70,
                      .D = 12,
                      .Dv = 8,
                      .slots = slots,
                      .terms = "bias"},
                     1);
    AttendGradProblem problem = c.Problem();
    problem.dterms = {};  // dense by contract
    CountBytes(&problem.forward.seqs);
    ExpectSameBits(AttendGradArgs{.params = c.Params(), .problems = {problem}}, 3, /*dense=*/{},
                   slots == Slots::kNone ? Planned::kExactly : Planned::kAtLeast);
  }
}

TEST_F(FarStridesCuda, Scan) {
  ScanSpec spec{.B = 2, .H = 4, .Hkv = 2, .Nq = 5, .Nk = 7, .D = 12, .Dv = 8};
  spec.params.causal = true;
  spec.decays = ScanSpec::Decays::kFeature;
  spec.beta = true;
  ScanCase c(spec);
  ExpectSameBits(ScanArgs{.params = spec.params, .problems = {c.Problem()}}, 3);
  ScanGradProblem backward = c.GradProblem();
  backward.dlog_decay = backward.dbeta = {};  // dense by contract
  ExpectSameBits(ScanGradArgs{.params = spec.params, .problems = {backward}}, 3);
}

TEST_F(FarStridesCuda, MatMul) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TestArray a = TestArray::Random(1, dtype, {2, 5, 16});
    const TestArray b = TestArray::Random(2, dtype, {2, 16, 24});
    const TestArray bias = TestArray::Random(3, dtype, {2, 5, 24});
    const TestArray out(dtype, {2, 5, 24});
    ExpectSameBits(MatMulArgs{.problems = {{a.view(), b.view(), bias.view(), {}, out.view()}}}, 3);
  }
}

}  // namespace
}  // namespace attnd::testing

#endif
