// Weights of a gradient at large scores: those of each row sum to 1, which takes lse_low and scores
// with the bits of the forward.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpu/attend_grad_case.h"

namespace attnd::testing {
namespace {

class AttendMagnitudes : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }

  void RunForward(const AttendParams& params, const AttendProblem& problem) {
    Stream stream(device(), &device().memory());
    const DeviceStatus ran =
        device().Run(stream, AttendArgs{.params = params, .problems = {problem}});
    ASSERT_TRUE(ran.ok()) << ran.text();
    ASSERT_TRUE(stream.Wait().ok());
  }

  // With dout = 1, dv summed over keys is the sum of all weights, column by column.
  void ExpectWeightsSumToOne(GradSizes sizes, double terms_stretch, unsigned seed) {
    SCOPED_TRACE(::testing::Message()
                 << "scores times " << sizes.stretch << ", terms times " << terms_stretch << ": "
                 << sizes.terms << ", slots " << static_cast<int>(sizes.slots));
    GradCase c(sizes, seed);
    for (const char* name : {"bias", "table", "slopes", "r"}) {
      if (sizes.terms.find(name == std::string("r") ? "relative" : name) == std::string::npos)
        continue;
      PlainArray values = c[name].Read();
      for (double& x : values.values) x *= terms_stretch;
      c[name].Write(values);
    }
    PlainArray ones = c["dout"].Read();
    for (double& x : ones.values) x = std::isnan(x) ? x : 1;
    c["dout"].Write(ones);
    const AttendGradProblem problem = c.Problem();
    RunForward(c.Params(), problem.forward);
    RunAttendGrad(device(), c.Params(), {problem});
    const PlainArray dv = c["dv"].Read(),
                     lse = ReadLse(problem.forward.lse, problem.forward.lse_low);
    const bool has_sinks = sizes.terms.find("sinks") != std::string::npos;
    const PlainArray dv2 = sizes.Nk2 > 0 ? c["dv2"].Read() : PlainArray();
    const PlainArray sinks = has_sinks ? c["sinks"].Read() : PlainArray();
    for (int64_t b = 0; b < sizes.B; ++b) {
      for (int64_t kv = 0; kv < sizes.Hkv; ++kv) {
        double sum = 0, wanted = 0;
        for (int64_t j = 0; j < sizes.Nk; ++j) sum += dv.At({b, kv, j, 0});
        for (int64_t j = 0; j < sizes.Nk2; ++j) sum += dv2.At({b, kv, j, 0});
        const int64_t group = sizes.H / sizes.Hkv;
        int64_t rows = 0;
        for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
          for (int64_t i = 0; i < c.seqs[b].nq; ++i) {
            const double of_row = lse.At({b, h, i});
            if (std::isinf(of_row)) continue;
            ++rows;
            wanted += 1 - (has_sinks ? std::exp(sinks.At({b, h}) - of_row) : 0);
          }
        }
        EXPECT_NEAR(sum, wanted, 1e-5 * static_cast<double>(rows)) << "kv head " << kv;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendMagnitudes, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(AttendMagnitudes, WeightsOfEveryRowSumToOne) {
  unsigned seed = 1;
  for (const char* terms : {"", "bias", "slopes", "sinks", "table labels", "relative", "constants",
                            "cap", "late table labels constants slopes bias",
                            "bias slopes sinks table labels relative constants",
                            "cap bias slopes sinks table labels relative constants"}) {
    for (const Slots slots : {Slots::kNone, Slots::kInOrder, Slots::kGather, Slots::kByHead}) {
      for (const double stretch : {1.0, 1e3, 1e6, 1e12}) {
        ExpectWeightsSumToOne({.B = 2,
                               .H = 4,
                               .Hkv = 2,
                               .Nq = 70,
                               .Nk = 331,
                               .Nk2 = slots >= Slots::kGather ? 20 : 0,
                               .D = 20,
                               .Dv = 3,
                               .L = 90,
                               .slots = slots,
                               .padded = true,
                               .terms = terms,
                               .stretch = stretch},
                              seed % 2 == 0 ? 1 : stretch, seed);
        ++seed;
      }
    }
  }
}

TEST_P(AttendMagnitudes, WeightsOfListsSumToOne) {
  unsigned seed = 100;
  for (const char* terms : {"", "bias slopes sinks", "cap bias"}) {
    for (const double stretch : {1.0, 1e3, 1e6, 1e12}) {
      ExpectWeightsSumToOne({.B = 2,
                             .H = 4,
                             .Hkv = 2,
                             .Nq = 70,
                             .Nk = 131,
                             .D = 33,
                             .Dv = 3,
                             .slots = Slots::kListed,
                             .terms = terms,
                             .stretch = stretch},
                            stretch, seed++);
    }
  }
}

}  // namespace
}  // namespace attnd::testing
