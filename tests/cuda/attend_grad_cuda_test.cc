// The gradient of attend on the CUDA device: types of elements and widths of rows that choose other
// kernels, any order of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
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

// Problems so large that weights have one part: rows in order that can be copied by 16 bytes go by
// wide tiles, with the same bits as those that cannot.
void ExpectWideTiles(GradSizes sizes, unsigned seed, const std::function<void(GradCase&)>& change) {
  std::vector<std::byte> bytes[2];
  for (const Memory memory : {Memory::kDense, Memory::kPitched}) {
    SCOPED_TRACE(memory == Memory::kDense ? "dense" : "pitched");
    sizes.memory = memory;
    GradCase c(sizes, seed);
    change(c);
    RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
    c.ExpectGradients(sizes.q == DType::kF16 ? 0x1p-11 : 0x1p-8);
    bytes[memory == Memory::kDense ? 0 : 1] = c.Gradients();
  }
  EXPECT_TRUE(bytes[0] == bytes[1]);
}

TEST(AttendGradCuda, WideTiles) {
  const auto kNoChange = [](GradCase&) {};
  unsigned seed = 50;
  for (const auto& [D, Dv] : {std::pair{64, 64}, {128, 128}, {40, 72}}) {
    for (const Slots slots : {Slots::kNone, Slots::kInOrder}) {
      const bool odd = seed % 2 != 0;
      SCOPED_TRACE(::testing::Message() << "D" << D << " slots " << static_cast<int>(slots));
      const GradSizes sizes = {.B = odd ? 2 : 1,
                               .H = 2,
                               .Hkv = 1,
                               .Nq = 257,
                               .Nk = 320,
                               .D = D,
                               .Dv = Dv,
                               .slots = slots,
                               .padded = odd,
                               .terms = odd ? "constants sinks" : ""};
      ExpectWideTiles(OfType(sizes, seed % 4 < 2 ? DType::kF16 : DType::kBF16), seed, kNoChange);
      ++seed;
    }
  }
  // All terms of a pattern, in the other type.
  const GradSizes sizes = {.Nq = 260,
                           .Nk = 270,
                           .D = 64,
                           .Dv = 64,
                           .slots = Slots::kInOrder,
                           .padded = true,
                           .terms = "constants"};
  ExpectWideTiles(OfType(sizes, DType::kF16), seed, kNoChange);
  ExpectWideTiles(OfType(sizes, DType::kBF16), seed, kNoChange);
}

TEST(AttendGradCuda, WideTilesGiveTheSameBitsInAnyOrderOfThreads) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int64_t D : {64, 128}) {
      SCOPED_TRACE(::testing::Message() << Name(dtype) << " D" << D);
      const GradSizes sizes = {
          .H = 2, .Hkv = 1, .Nq = 257, .Nk = 320, .D = D, .Dv = D, .slots = Slots::kInOrder};
      ExpectSameBits(OfType(sizes, dtype), 80);
    }
  }
}

// Wherever operands lie when it is planned.
TEST(AttendGradCuda, MemoryOfWideTilesIsPlanned) {
  GradCase c(OfType({.Nq = 260, .Nk = 270, .D = 64, .Dv = 64}, DType::kBF16), 7);
  const AttendGradArgs args{.params = c.Params(), .problems = {c.Problem()}};
  RunOn(Cuda(), [&](Stream& stream) { return Cuda().Run(stream, args); });
  c.ExpectGradients(0x1p-8);
}

// What is not finite reaches those that see it, and nobody else.
TEST(AttendGradCuda, WideTilesWithNaN) {
  const double kNaN = std::nan(""), kInf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Slots slots : {Slots::kNone, Slots::kInOrder}) {
      SCOPED_TRACE(::testing::Message() << Name(dtype) << static_cast<int>(slots));
      const GradSizes sizes = {
          .H = 2, .Hkv = 1, .Nq = 270, .Nk = 330, .D = 64, .Dv = 40, .slots = slots};
      ExpectWideTiles(OfType(sizes, dtype), 90, [&](GradCase& c) {
        PlainArray q = c["q"].Read(), v = c["v"].Read(), dout = c["dout"].Read();
        q.At({0, 1, 70, 3}) = kNaN, dout.At({0, 0, 200, 5}) = kInf;
        for (int64_t d = 0; d < 40; ++d) v.At({0, 0, 131, d}) = kNaN;
        c["q"].Write(q), c["v"].Write(v), c["dout"].Write(dout);
      });
    }
  }
}

// Blocks that meet so many pairs of tiles that they go on in further launches, of which the last is
// not whole: keys that many query heads share, whose heads end in the middle of a launch.
TEST(AttendGradCuda, KeysOfManyHeadsInSeveralLaunches) {
  unsigned seed = 120;
  for (const Slots slots :
       {Slots::kNone, Slots::kInOrder, Slots::kOnce, Slots::kGather, Slots::kByHead}) {
    for (const char* terms : {"", "bias slopes sinks cap"}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(slots) << terms);
      const GradSizes sizes = {.H = 17,
                               .Hkv = 1,
                               .Nq = 150,
                               .Nk = 70,
                               .D = 16,
                               .Dv = 8,
                               .slots = slots,
                               .padded = true,
                               .terms = terms};
      GradCase c(sizes, seed++);
      RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
      c.ExpectGradients();
    }
  }
  // Sums in float32 beside the results.
  const GradSizes sizes = {
      .H = 135, .Hkv = 1, .Nq = 70, .Nk = 70, .D = 16, .Dv = 8, .slots = Slots::kInOrder};
  ExpectSameBits(OfType(sizes, DType::kBF16), seed);
}

// Heads in natural order with patterns of their own, of which a launch skips many.
TEST(AttendGradCuda, KeysOfHeadsWithTheirOwnPatternsInSeveralLaunches) {
  const GradSizes sizes = {
      .H = 90, .Hkv = 1, .Nq = 150, .Nk = 70, .D = 16, .Dv = 8, .slots = Slots::kInOrder};
  GradCase c(sizes, 140);
  AttendSeq& seq = c.seqs[0];
  for (unsigned n = 0; n < 5; ++n) {
    seq.head_patterns.push_back(n == 0 ? seq.pattern : GradCase(sizes, 141 + n).seqs[0].pattern);
  }
  while (std::ssize(seq.head_patterns) < sizes.H) {
    seq.head_patterns.push_back(seq.head_patterns[seq.head_patterns.size() * 7 % 5]);
  }
  seq.pattern = nullptr;
  RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
  c.ExpectGradients();
}

// Rows that see so many keys. With the relative term a block has several tiles of queries.
TEST(AttendGradCuda, QueriesOfManyKeysInSeveralLaunches) {
  unsigned seed = 150;
  for (const char* terms : {"", "bias slopes sinks table labels constants cap", "relative"}) {
    for (const Slots slots : {Slots::kNone, Slots::kInOrder}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(slots) << terms);
      const bool is_relative = terms == std::string("relative");
      const GradSizes sizes = {.H = 2,
                               .Hkv = 1,
                               .Nq = is_relative ? 530 : 70,
                               .Nk = 64 * 33 + 5,
                               .D = 16,
                               .Dv = 8,
                               .slots = slots,
                               .terms = terms};
      GradCase c(sizes, seed++);
      RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
      c.ExpectGradients();
    }
  }
  GradSizes sizes = {.Nq = 70, .Nk = 64 * 257 + 3, .D = 8, .Dv = 8, .terms = "slopes"};
  ExpectSameBits(OfType(sizes, DType::kF16), seed++);
  // As many problems as launches: each has its own.
  const GradCase many(OfType(sizes, DType::kBF16), seed++);
  sizes.Nk = 100;
  const GradCase few(OfType(sizes, DType::kBF16), seed++);
  RunAttendGrad(Cuda(), many.Params(), {few.Problem(), many.Problem()});
  many.ExpectGradients();
  few.ExpectGradients();
}

TEST(AttendGradCuda, WideTilesInSeveralLaunches) {
  const double kNaN = std::nan("");
  const GradSizes keys =
      OfType({.H = 54, .Hkv = 1, .Nq = 257, .Nk = 257, .D = 40, .Dv = 40}, DType::kF16);
  const GradCase c(keys, 170);
  RunAttendGrad(Cuda(), c.Params(), {c.Problem()});
  c.ExpectGradients(0x1p-11);
  // What is not finite in the first launch of all tiles; the next one adds to what others compute.
  ExpectWideTiles(keys, 171, [&](GradCase& c) {
    PlainArray q = c["q"].Read();
    q.At({0, 1, 70, 3}) = kNaN;
    c["q"].Write(q);
  });
  // In the last one.
  const GradSizes queries = {.Nq = 257, .Nk = 64 * 257 + 3, .D = 40, .Dv = 40};
  ExpectWideTiles(OfType(queries, DType::kBF16), 172, [&](GradCase& c) {
    PlainArray v = c["v"].Read();
    v.At({0, 0, 64 * 257 + 1, 7}) = kNaN;
    c["v"].Write(v);
  });
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
