// scan on the CPU against nested loops in double, in every instruction set of the machine.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/cpu/scan_case.h"

namespace attnd::testing {
namespace {

// The analytic gradients that everything below is held against, by central differences.
TEST(PlainScan, GradientsAreDerivatives) {
  for (FeatureMap map : kMaps) {
    for (bool normalize : {true, false}) {
      ScanCase c({.B = 2,
                  .H = 4,
                  .Hkv = 2,
                  .Nq = 5,
                  .Nk = 6,
                  .D = 3,
                  .Dv = 2,
                  .params = {.map = map,
                             .causal = true,
                             .den = normalize ? ScanDen::kAdd : ScanDen::kOne,
                             .eps = 1e-3,
                             .scale = 0.5},
                  .mean = 1.5,
                  .deviation = 0.5});
      const PlainTensor dout = c.dout.Plain(), dlse = c.dlse.Plain();
      PlainScan plain = c.Plain();
      const PlainScanGrads grads = Gradients(plain, {dout, dlse});
      const auto objective = [&] {
        const PlainScanOut r = Forward(plain);
        double sum = 0;
        for (size_t i = 0; i < dout.data.size(); ++i) sum += dout.data[i] * r.out.data[i];
        for (size_t i = 0; i < dlse.data.size(); ++i) {
          if (std::isfinite(r.lse.data[i])) sum += dlse.data[i] * r.lse.data[i];
        }
        return sum;
      };
      const auto check = [&](PlainTensor* x, const PlainTensor& gradient) {
        for (size_t i = 0; i < x->data.size(); ++i) {
          const double kept = x->data[i], step = 1e-6;
          x->data[i] = kept + step;
          const double above = objective();
          x->data[i] = kept - step;
          const double slope = (above - objective()) / (2 * step);
          x->data[i] = kept;
          EXPECT_NEAR(gradient.data[i], slope, 1e-6 * (1 + std::fabs(slope)))
              << static_cast<int>(map) << " normalize " << normalize;
        }
      };
      check(&plain.q, grads.dq);
      check(&plain.k, grads.dk);
      check(&plain.v, grads.dv);
    }
  }
}

TEST(Scan, Lengths) {
  for (int64_t Nq : {0, 1, 63, 64, 65, 131}) {
    for (int64_t Nk : {0, 1, 63, 64, 65, 131}) {
      for (bool causal : {false, true}) {
        ExpectMatchesPlain({.Nq = Nq, .Nk = Nk, .D = 5, .Dv = 7, .params = {.causal = causal}});
      }
    }
  }
}

TEST(Scan, HeadDims) {
  for (int64_t D : {1, 3, 32, 64, 80}) {
    for (int64_t Dv : {1, 3, 32, 64, 80}) {
      ExpectMatchesPlain({.Nq = 70, .Nk = 70, .D = D, .Dv = Dv, .params = {.causal = true}});
      ExpectMatchesPlain({.Nq = 70, .Nk = 70, .D = D, .Dv = Dv});
    }
  }
  // States of several panels, blocks of 64 tokens and less.
  for (bool causal : {false, true}) {
    for (int64_t group : {1, 3}) {
      const ScanSpec spec = {.H = group, .Nq = 150, .Nk = 140, .params = {.causal = causal}};
      ScanSpec wide = spec, tall = spec;
      wide.D = tall.Dv = 40;
      wide.Dv = tall.D = 300;
      ExpectMatchesPlain(wide);
      ExpectMatchesPlain(tall);
    }
  }
}

TEST(Scan, EveryFeatureMap) {
  for (FeatureMap map : kMaps) {
    for (bool causal : {false, true}) {
      for (bool normalize : {true, false}) {
        ExpectMatchesPlain({.H = 4,
                            .Hkv = 2,
                            .Nq = 131,
                            .Nk = 131,
                            .D = 20,
                            .Dv = 12,
                            .params = {.map = map,
                                       .causal = causal,
                                       .den = normalize ? ScanDen::kAdd : ScanDen::kOne,
                                       .scale = 0.25},
                            .mean = IsSigned(map) ? 1.5 : 0.0});
      }
    }
  }
}

TEST(Scan, OffsetOfFeatures) {
  for (const bool causal : {false, true}) {
    const ScanParams params = {.map = FeatureMap::kIdentity, .offset = 2.5, .causal = causal};
    ExpectMatchesPlain({.Nq = 70, .Nk = 65, .D = 19, .Dv = 12, .params = params});
    ExpectMatchesPlain({.Nq = 40, .Nk = 70, .D = 32, .params = params, .dtype = DType::kBF16},
                       {.out = 1e-2, .grad = 2e-2});
  }
}

TEST(Scan, CausalOffsets) {
  for (int64_t offset : {-200, -70, -5, 0, 3, 64, 100, 300}) {
    for (FeatureMap map : {FeatureMap::kEluPlusOne, FeatureMap::kExp}) {
      ScanSpec spec = {.B = 2,
                       .Nq = 90,
                       .Nk = 110,
                       .D = 9,
                       .Dv = 17,
                       .params = {.map = map, .causal = true, .chunk = 32}};
      spec.seqs = {{.nq = 90, .nk = 110, .offset = offset}, {.nq = 41, .nk = 40, .offset = offset}};
      ExpectMatchesPlain(spec);
    }
  }
}

TEST(Scan, LengthsOfRowsWithNanInPadding) {
  for (bool causal : {false, true}) {
    for (FeatureMap map : {FeatureMap::kEluPlusOne, FeatureMap::kRelu, FeatureMap::kExp}) {
      ScanSpec spec = {.B = 5,
                       .H = 4,
                       .Hkv = 2,
                       .Nq = 100,
                       .Nk = 100,
                       .D = 8,
                       .Dv = 8,
                       .params = {.map = map, .causal = causal}};
      spec.seqs = {{.nq = 100, .nk = 37},
                   {.nq = 0, .nk = 50},
                   {.nq = 66, .nk = 0},
                   {.nq = 33, .nk = 99},
                   {.nq = 1, .nk = 1}};
      ExpectMatchesPlain(spec);
    }
  }
}

TEST(Scan, StorageAndLayout) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
      const Tolerance by_dtype = dtype == DType::kF32   ? Tolerance{}
                                 : dtype == DType::kF16 ? Tolerance{1e-3, 2e-3}
                                                        : Tolerance{8e-3, 1.6e-2};
      ExpectMatchesPlain({.B = 2,
                          .H = 4,
                          .Hkv = 2,
                          .Nq = 77,
                          .Nk = 77,
                          .D = 19,
                          .Dv = 33,
                          .params = {.causal = true},
                          .dtype = dtype,
                          .layout = layout},
                         by_dtype);
    }
  }
}

TEST(Scan, EveryChunkSize) {
  for (int64_t chunk : {1, 7, 64, 100, 1024}) {
    for (FeatureMap map : {FeatureMap::kEluPlusOne, FeatureMap::kExp}) {
      ExpectMatchesPlain({.Nq = 131,
                          .Nk = 140,
                          .D = 8,
                          .Dv = 8,
                          .params = {.map = map, .causal = true, .chunk = chunk}});
    }
  }
}

TEST(Scan, SameBitsWithOneAndTwoThreads) {
  for (const std::string& isa : AvailableIsas()) {
    const ScanSpec spec = {
        .B = 3, .H = 4, .Hkv = 2, .Nq = 300, .Nk = 300, .params = {.causal = true}};
    ScanCase one(spec), two(spec);
    one.Run(&CpuOf(isa, 1));
    two.Run(&CpuOf(isa, 2));
    for (size_t i = 0; i < one.Outputs().size(); ++i) {
      EXPECT_EQ(one.Outputs()[i]->bytes(), two.Outputs()[i]->bytes());
    }
  }
}

// Results of whole cache lines that are larger than L2 are stored past the caches; those of a
// GuardedTensor, which lie across lines, are not.
TEST(Scan, SameBitsPastTheCaches) {
  const ScanSpec spec = {
      .H = 1, .Nq = 4200, .Nk = 4200, .D = 64, .Dv = 64, .params = {.causal = true}};
  for (const std::string& isa : AvailableIsas()) {
    for (int threads : {1, 2}) {
      ScanCase across(spec), along(spec);
      across.Run(&CpuOf(isa, threads));
      BufferPool pool(int64_t{1} << 28, /*poison=*/true);
      std::vector<std::shared_ptr<Buffer>> storage;
      ScanGradProblem grad = along.GradProblem();
      for (View* view : {&grad.forward.out, &grad.dq, &grad.dk, &grad.dv}) {
        storage.push_back(pool.Allocate(view->shape.size() * 4));
        *view = DenseView(storage.back()->data(), DType::kF32, view->shape);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(view->data) % 64, 0u);
      }
      Stream stream(CpuOf(isa, threads), &pool);
      const auto& params = spec.params;
      ASSERT_TRUE(CpuOf(isa, threads)
                      .Run(stream, ScanArgs{.params = params, .problems = {grad.forward}})
                      .ok());
      ASSERT_TRUE(
          CpuOf(isa, threads).Run(stream, ScanGradArgs{.params = params, .problems = {grad}}).ok());
      const auto same = [](const View& a, const View& b) {
        return std::memcmp(a.data, b.data, static_cast<size_t>(a.shape.size() * 4)) == 0;
      };
      EXPECT_TRUE(same(grad.forward.out, across.out.view())) << isa << " threads " << threads;
      EXPECT_TRUE(same(grad.dq, across.dq.view())) << isa << " threads " << threads;
      EXPECT_TRUE(same(grad.dk, across.dk.view())) << isa << " threads " << threads;
      EXPECT_TRUE(same(grad.dv, across.dv.view())) << isa << " threads " << threads;
    }
  }
}

TEST(Scan, ListIsOneLaunchAndSameBitsAsAlone) {
  for (const std::string& isa : AvailableIsas()) {
    SCOPED_TRACE(isa);
    const ScanParams params = {.causal = true};
    std::vector<std::unique_ptr<ScanCase>> alone, listed;
    for (int64_t i = 0; i < 64; ++i) {
      const ScanSpec spec = {.B = 1 + i % 2,
                             .H = 2,
                             .Nq = 7 * i % 90,
                             .Nk = 11 * i % 130,
                             .D = 16,
                             .Dv = 24,
                             .params = params,
                             .seed = static_cast<unsigned>(i)};
      alone.push_back(std::make_unique<ScanCase>(spec));
      listed.push_back(std::make_unique<ScanCase>(spec));
    }
    auto* device = &CpuOf(isa, 2);
    for (auto& c : alone) c->Run(device);
    std::vector<ScanProblem> problems;
    std::vector<ScanGradProblem> grads;
    for (auto& c : listed) {
      problems.push_back(c->Problem());
      grads.push_back(c->GradProblem());
    }
    BufferPool pool(0, /*poison=*/true);
    Stream stream(*device, &pool);
    const int64_t before = device->launches();
    ASSERT_TRUE(device->Run(stream, ScanArgs{.params = params, .problems = problems}).ok());
    EXPECT_EQ(device->launches() - before, 1);
    ASSERT_TRUE(device->Run(stream, ScanGradArgs{.params = params, .problems = grads}).ok());
    EXPECT_EQ(device->launches() - before, 2);
    for (size_t i = 0; i < alone.size(); ++i) {
      for (size_t j = 0; j < alone[i]->Outputs().size(); ++j) {
        EXPECT_EQ(alone[i]->Outputs()[j]->bytes(), listed[i]->Outputs()[j]->bytes()) << i;
      }
    }
  }
}

TEST(Scan, ADryRunTakesTheSameMemoryAndPredictsSeconds) {
  Device* device = &CpuOf(AvailableIsas()[0]);
  ScanSpec spec = {.H = 4, .Hkv = 2, .Nq = 100, .Nk = 100, .params = {.causal = true}};
  spec.seqs = {{.nq = 100, .nk = 100, .offset = 0, .visible_pairs = 5050}};
  const ScanCase c(spec);
  const ScanGradProblem grad = c.GradProblem();
  BufferPool pool;
  Stream dry(*device, nullptr), wet(*device, &pool);
  for (Stream* stream : {&dry, &wet}) {
    ASSERT_TRUE(
        device->Run(*stream, ScanArgs{.params = spec.params, .problems = {grad.forward}}).ok());
    ASSERT_TRUE(device->Run(*stream, ScanGradArgs{.params = spec.params, .problems = {grad}}).ok());
  }
  EXPECT_EQ(dry.workspace().peak_bytes(), wet.workspace().peak_bytes());
  EXPECT_GT(dry.work().seconds, 0);
}

}  // namespace
}  // namespace attnd::testing
