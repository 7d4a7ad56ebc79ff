// What sequences of a batch see is described once where they are alike.
#include "kernels/methods/pattern/seqs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/methods/pattern/data.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/source.h"
#include "tests/cpu/attend_case.h"

namespace attnd::testing {
namespace {

// Symptom: a problem whose sequences share a mask was described for each of them, beside a problem
// whose sequences have their own masks: more than its plan counts.
TEST(Seqs, SequencesThatShareAMaskAreDescribedOnceBesideProblemsWhoseDoNot) {
  constexpr int64_t B = 3, N = 8;
  std::vector<uint8_t> values(B * N, 1);
  const auto mask = [&](const Shape& shape) { return DenseView(values.data(), DType::kU8, shape); };
  Inputs in;
  in.tensors["mask"] = Tensor({mask({B, N}), mask({N}), mask({B, N})}, {nullptr, nullptr, nullptr});
  const std::vector<ProblemShape> problems(3, {.B = B, .H = 1, .Hkv = 1, .Nq = N, .Nk = N});
  in.problems = problems;

  BufferPool pool;
  Stream stream(CpuOf(AvailableIsas().back(), 1), &pool);
  Ops ops(stream, nullptr);
  const std::vector<TensorInfo> declared = {{"mask", "[B,Nk] or [Nk]", "uint8", ""}};
  const Integers ints(ops, in, declared);
  std::vector<bool> differ;
  for (size_t p = 0; p < problems.size(); ++p) differ.push_back(ints.differ(p));
  std::vector<int> described(problems.size());
  const PatternSeqs seqs = SeqsOf(ops, in, /*causal=*/false, differ, [&](const SeenSeq& seq) {
    ++described[seq.p];
    return AllHeads({.Nq = N, .Nk = N});
  });
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_THAT(described, ::testing::ElementsAre(B, 1, B));
  for (const auto& of_problem : seqs.parts.at(0)) EXPECT_EQ(of_problem.size(), B);
}

}  // namespace
}  // namespace attnd::testing
