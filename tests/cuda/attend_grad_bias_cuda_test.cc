// The gradient of a bias that repeats, on the CUDA device: blocks share out its sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cpu/attend_grad_case.h"
#include "tests/cuda/thread_orders.h"
#include "tests/plain/cpus.h"

namespace attnd::testing {
namespace {

Device& Cuda() { return CpuOf("cuda", 1); }

// The problem of sequence `b` alone.
AttendGradProblem Alone(AttendGradProblem p, int64_t b) {
  AttendTerms& t = p.forward.terms;
  for (View* view : {&p.forward.q, &p.forward.k, &p.forward.v, &p.forward.out, &p.forward.lse,
                     &p.forward.lse_low, &p.dout, &p.dlse, &p.dq, &p.dk, &p.dv, &t.k2, &t.v2,
                     &t.bias, &p.dterms.k2, &p.dterms.v2, &p.dterms.bias}) {
    if (!view->given()) continue;
    view->shape.dims[0] = 1;
    view->data = static_cast<std::byte*>(view->data) + b * view->stride[0] * SizeOf(view->dtype);
  }
  p.forward.seqs = {p.forward.seqs[static_cast<size_t>(b)]};
  return p;
}

// The sum over H query heads of dS of keys 0 and 1, which alone exist, of Nq x Nk pairs.
class TwoKeys {
 public:
  TwoKeys(int64_t heads, int64_t queries, int64_t keys, DType dtype, bool sums_all)
      : H(heads), Nq(queries), sums_all_(sums_all) {
    q = TestArray::Random(1, DType::kF32, {1, H, Nq, 1});
    k = TestArray::Random(2, DType::kF32, {1, 1, keys, 1});
    v = TestArray::Random(3, DType::kF32, {1, 1, keys, 1});
    dout = TestArray::Random(4, DType::kF32, {1, H, Nq, 1});
    out = TestArray(DType::kF32, {1, H, Nq, 1});
    lse = TestArray(DType::kF32, {1, H, Nq});
    bias = TestArray(DType::kF32, {1, 1, 1, 1});
    bias.Write(PlainArray({1, 1, 1, 1}, 0));
    dbias = TestArray(dtype, {1, 1, sums_all ? 1 : Nq, sums_all ? 1 : keys});
  }
  // sees(i): whether query i sees the keys.
  template <class F>
  void Run(AttendSeq seq, const F& sees) {
    const PlainArray of_q = q.Read(), of_k = k.Read(), of_v = v.Read(), of_dout = dout.Read();
    PlainArray of_out({1, H, Nq, 1}, 0), of_lse({1, H, Nq}, -INFINITY);
    PlainArray sums({1, 1, Nq, 2}, 0);
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < Nq; ++i) {
        if (!sees(i)) continue;
        double weights[2], sum = 0, mean = 0;
        for (int64_t j = 0; j < 2; ++j) {
          weights[j] = std::exp(of_q.At({0, h, i, 0}) * of_k.At({0, 0, j, 0}));
          sum += weights[j];
        }
        for (int64_t j = 0; j < 2; ++j) mean += weights[j] / sum * of_v.At({0, 0, j, 0});
        for (int64_t j = 0; j < 2; ++j) {
          sums.At({0, 0, i, j}) +=
              weights[j] / sum * (of_v.At({0, 0, j, 0}) - mean) * of_dout.At({0, h, i, 0});
        }
        of_out.At({0, h, i, 0}) = mean, of_lse.At({0, h, i}) = std::log(sum);
      }
    }
    out.Write(of_out), lse.Write(of_lse);
    seq.nq = Nq, seq.nk = 2;
    AttendGradProblem p;
    p.forward = {.q = q.view(),
                 .k = k.view(),
                 .v = v.view(),
                 .out = out.view(),
                 .lse = lse.view(),
                 .seqs = {seq}};
    p.forward.terms.bias = bias.view();
    p.forward.terms.bias.shape = {1, H, Nq, k.view().shape[2]};
    for (int64_t& stride : p.forward.terms.bias.stride) stride = 0;
    p.dout = dout.view(), p.dterms.bias = dbias.view();
    RunAttendGrad(Cuda(), {}, {p});
    // Sums of numbers below 1.
    const double unit = dbias.view().dtype == DType::kF32 ? 0x1p-20 : 0x1p-7;
    const PlainArray ours = dbias.Read();
    double total = 0, least = 0;
    for (int64_t i = 0; i < Nq; ++i) {
      for (int64_t j = 0; j < ours.shape[3]; ++j) {
        const double right = j < 2 ? sums.At({0, 0, i, j}) : 0;
        if (j < 2) total += right + (sums_all_ ? sums.At({0, 0, i, 1}) : 0);
        if (sums_all_) continue;
        least = std::max(least, std::fabs(ours.At({0, 0, i, j}) - right));
      }
    }
    if (sums_all_) least = std::fabs(ours.At({0, 0, 0, 0}) - total);
    EXPECT_LE(least, unit * 8);
  }

  const int64_t H, Nq;
  TestArray q, k, v, dout, out, lse, bias, dbias;

 private:
  const bool sums_all_;
};

// More heads, or tiles of a head, than a block meets in a launch.
TEST(AttendGradBiasCuda, SharesOfHeadsAndOfTiles) {
  unsigned seed = 1;
  for (const Slots slots : {Slots::kInOrder, Slots::kByHead, Slots::kListed}) {
    for (const char* repeats : {"bh", "bhq", "bhk", "bhqk"}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(slots) << repeats);
      const GradCase c({.B = 3,
                        .H = 12,
                        .Hkv = 2,
                        .Nq = 20,
                        .Nk = 70,
                        .Nk2 = slots == Slots::kByHead ? 9 : 0,
                        .D = 4,
                        .Dv = 4,
                        .slots = slots,
                        .padded = true,
                        .terms = "bias",
                        .repeats = repeats},
                       seed++);
      std::vector<std::byte> first;
      InEveryOrder([&] {
        RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
        if (first.empty()) first = c.Gradients();
        EXPECT_TRUE(c.Gradients() == first);
      });
      c.ExpectGradients();
    }
  }
}

// Parts of one row of tiles, and of one column.
TEST(AttendGradBiasCuda, SharesOfOneHead) {
  unsigned seed = 50;
  for (const Slots slots : {Slots::kInOrder, Slots::kGather}) {
    for (const auto& [Nq, Nk] : {std::pair{60, 2900}, {2900, 60}}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(slots) << " Nq" << Nq);
      const GradCase c({.B = 2,
                        .H = 1,
                        .Hkv = 1,
                        .Nq = Nq,
                        .Nk = Nk,
                        .D = 4,
                        .Dv = 4,
                        .slots = slots,
                        .terms = "bias",
                        .repeats = "bqk"},
                       seed++);
      RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
      c.ExpectGradients();
    }
  }
}

// So many heads that their shares are summed in groups, and that those in gather orders have two
// rounds.
TEST(AttendGradBiasCuda, ManyHeads) {
  const GradCase c({.H = 600,
                    .Hkv = 1,
                    .Nq = 6,
                    .Nk = 8,
                    .slots = Slots::kGather,
                    .terms = "bias",
                    .repeats = "bh"},
                   100);
  AttendGradProblem problem = c.Problem();
  RunAttendGrad(Cuda(), c.Params(), {problem});
  c.ExpectGradients();
}

// So large a gradient that one share fits: later launches add to its sums, in the gradient itself
// or in scratch.
TEST(AttendGradBiasCuda, RoundsInOrder) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(Name(dtype));
    TwoKeys(70, 64, 64 * 1280, dtype, false).Run({}, [](int64_t) { return true; });
  }
}

// So many rows that a share has two rounds of them. Most see nothing.
TEST(AttendGradBiasCuda, RoundsOfLists) {
  TwoKeys c(2, 20000, 2, DType::kF32, true);
  const auto sees = [](int64_t i) { return i % 100 < 2; };
  Pattern pattern;
  pattern.Nq = c.Nq, pattern.Nk = 2;
  pattern.keys_of.begin = {0};
  std::vector<int32_t> queries;
  for (int64_t i = 0; i < c.Nq; ++i) {
    std::vector<int32_t>& keys = pattern.keys_of.columns;
    if (sees(i)) keys.insert(keys.end(), {0, 1}), queries.push_back(static_cast<int32_t>(i));
    pattern.keys_of.begin.push_back(static_cast<int64_t>(keys.size()));
  }
  const auto count = static_cast<int64_t>(queries.size());
  pattern.queries_of = {{0, count, 2 * count}, queries};
  std::vector<int32_t>& twice = pattern.queries_of.columns;
  twice.insert(twice.end(), queries.begin(), queries.end());
  c.Run({.pattern = std::make_shared<const Pattern>(pattern), .is_listed = true}, sees);
}

// Sequences of other lengths have a problem each, with shares of its own; a plan has one for all.
TEST(AttendGradBiasCuda, SharesOfSequencesArePlanned) {
  for (const Slots slots : {Slots::kInOrder, Slots::kByHead, Slots::kListed}) {
    for (const int64_t H : {33, 200}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(slots) << " H" << H);
      const GradCase c({.B = 5,
                        .H = H,
                        .Hkv = 1,
                        .Nq = 20,
                        .Nk = 70,
                        .D = 4,
                        .Dv = 4,
                        .slots = slots,
                        .terms = "bias",
                        .repeats = "bh"},
                       110);
      Stream all(Cuda(), nullptr), each(Cuda(), nullptr);
      all.alike() = {.problems = 5, .most = 5};
      each.alike() = {.entries = 5, .problems = 5};
      AttendGradArgs args{.params = c.Params(), .problems = {c.Problem()}};
      ASSERT_TRUE(Cuda().Run(all, args).ok());
      args.problems.clear();
      for (int64_t b = 0; b < 5; ++b) args.problems.push_back(Alone(c.Problem(), b));
      ASSERT_TRUE(Cuda().Run(each, args).ok());
      EXPECT_GE(all.workspace().peak_bytes(), each.workspace().peak_bytes());
    }
  }
}

// A sequence has the same bits alone and among others, and a problem in a list.
TEST(AttendGradBiasCuda, BatchesHaveTheBitsOfTheirSequences) {
  unsigned seed = 200;
  const std::pair<Slots, const char*> cases[] = {{Slots::kInOrder, "h"},
                                                 {Slots::kGather, "h"},
                                                 {Slots::kGather, "hqk"},
                                                 {Slots::kListed, "hk"}};
  for (const auto& [slots, repeats] : cases) {
    SCOPED_TRACE(::testing::Message() << static_cast<int>(slots) << repeats);
    const GradCase c({.B = 2,
                      .H = 33,
                      .Hkv = 1,
                      .Nq = 40,
                      .Nk = 60,
                      .D = 2,
                      .Dv = 2,
                      .slots = slots,
                      .padded = true,
                      .terms = "bias",
                      .repeats = repeats},
                     seed++);
    const AttendGradProblem both = c.Problem(), first = Alone(both, 0), second = Alone(both, 1);
    RunAttendGrad(Cuda(), c.Params(), {both});
    c.ExpectGradients();
    const std::vector<std::byte> bits = c.Gradients();
    RunAttendGrad(Cuda(), c.Params(), {second, first});
    EXPECT_TRUE(c.Gradients() == bits);
    RunAttendGrad(Cuda(), c.Params(), {first});
    RunAttendGrad(Cuda(), c.Params(), {second});
    EXPECT_TRUE(c.Gradients() == bits);
  }
}

}  // namespace
}  // namespace attnd::testing
