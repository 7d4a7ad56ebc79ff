// The gradient of attend on the CUDA device: types of elements and widths of rows that choose other
// kernels, any order of threads.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/cpu/attend_grad_case.h"
#include "tests/cuda/thread_orders.h"
#include "tests/plain/cpus.h"

namespace attnd::testing {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

Device& Cuda() { return CpuOf("cuda", 1); }

GradSizes OfType(GradSizes sizes, DType dtype) {
  sizes.q = sizes.k = sizes.v = sizes.out = dtype;
  return sizes;
}

// The same bits in every order of threads.
void ExpectSameBits(const GradSizes& sizes, unsigned seed) {
  std::vector<std::byte> first;
  InEveryOrder([&] {
    const GradCase c(sizes, seed);
    RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
    if (first.empty()) {
      c.ExpectGradients();
      first = c.Gradients();
    }
    EXPECT_TRUE(c.Gradients() == first);
  });
}

TEST(AttendGradCuda, EveryWidthOfRows) {
  unsigned seed = 1;
  for (const DType dtype : kFloats) {
    for (const auto& [D, Dv] : {std::pair{64, 64}, {128, 128}, {72, 40}, {192, 256}, {330, 8}}) {
      for (const char* terms : {"", "slopes cap"}) {
        SCOPED_TRACE(::testing::Message() << Name(dtype) << " D" << D << " Dv" << Dv << terms);
        const GradCase c(OfType({.H = 2,
                                 .Hkv = 1,
                                 .Nq = 70,
                                 .Nk = 130,
                                 .D = D,
                                 .Dv = Dv,
                                 .slots = Slots::kInOrder,
                                 .terms = terms},
                                dtype),
                         seed++);
        RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
        c.ExpectGradients();
      }
    }
  }
}

TEST(AttendGradCuda, TheSameBitsInAnyOrderOfThreads) {
  unsigned seed = 20;
  for (const DType dtype : kFloats) {
    for (const Slots slots : {Slots::kInOrder, Slots::kGather, Slots::kByHead, Slots::kListed}) {
      for (const char* terms : {"", "bias slopes sinks table labels relative constants cap"}) {
        SCOPED_TRACE(::testing::Message() << Name(dtype) << static_cast<int>(slots) << terms);
        const bool is_listed = slots == Slots::kListed;
        ExpectSameBits(OfType({.H = 2,
                               .Hkv = 1,
                               .Nq = 70,
                               .Nk = 100,
                               .Nk2 = slots == Slots::kGather ? 9 : 0,
                               .D = 24,
                               .Dv = 16,
                               .slots = slots,
                               .terms = !is_listed || *terms == 0 ? terms : "bias slopes sinks cap",
                               .repeats = seed % 2 == 0 ? "b" : "bh"},
                              dtype),
                       seed++);
      }
    }
  }
}

// Numbers that leave the range of float16 on the way, and rows that hold NaN where none sees them.
TEST(AttendGradCuda, Float16OfAnySize) {
  for (const double size : {1e-4, 1.0, 3e4}) {
    SCOPED_TRACE(size);
    GradCase c(OfType({.H = 2, .Hkv = 1, .Nq = 70, .Nk = 130, .D = 64, .Dv = 64}, DType::kF16), 5);
    PlainArray dout = c["dout"].Read(), dlse = c["dlse"].Read();
    for (double& x : dout.values) x *= size;
    for (double& x : dlse.values) x *= size;
    c["dout"].Write(dout);
    c["dlse"].Write(dlse);
    RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
    c.ExpectGradients();
  }
}

}  // namespace
}  // namespace attnd::testing
