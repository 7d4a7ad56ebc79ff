// Symptom: linear attention failed on a device that declines scan. The composition of ops gives the
// values and gradients of the recurrence, and counts the same work.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/ops/ops.h"
#include "tests/cpu/scan_case.h"
#include "tests/plain/declining_device.h"

namespace attnd::testing {
namespace {

// The tensors of a case; empty unless given.
template <class F>
Tensor Given(const std::vector<const ScanCase*>& cases, bool given, const F& array) {
  if (!given) return {};
  std::vector<View> views;
  for (const ScanCase* c : cases) views.push_back(array(*c).view());
  return Tensor(std::move(views), std::vector<std::shared_ptr<Buffer>>(cases.size()));
}

// Rank 3 as [B,H,N,1].
PlainTensor Values(const Tensor& x, size_t problem = 0) {
  View view = x[problem];
  if (view.shape.rank == 3) view.shape.rank = 4;
  const Shape& s = view.shape;
  PlainTensor plain(s[0], s[1], s[2], s[3]);
  size_t n = 0;
  ForEachIndex(s, [&](const std::vector<int64_t>& at) {
    int64_t place = 0;
    for (size_t i = 0; i < 4; ++i) place += at[i] * (s[i] > 1 ? view.stride[i] : 0);
    plain.data[n++] = view.As<float>()[place];
  });
  return plain;
}

struct Run {
  ScanOut out;
  std::vector<Tensor> grads;  // of q, k, v, log_decay, beta, s0, z0
  Work work;
  int64_t peak = 0;
};

// A list with one problem per case. The other tensors are the same in all.
Run RunOf(Device& device, const std::vector<const ScanCase*>& cases, BufferPool* pool) {
  const ScanSpec& spec = cases[0]->spec;
  const auto all = [&](bool given, const GuardedTensor ScanCase::*array) {
    return Given(cases, given, [&](const ScanCase& c) -> const GuardedTensor& { return c.*array; });
  };
  const bool decays = spec.decays != ScanSpec::Decays::kNone;
  const std::vector<Tensor> in = {
      all(true, &ScanCase::q),         all(true, &ScanCase::k),
      all(true, &ScanCase::v),         all(decays, &ScanCase::log_decay),
      all(spec.beta, &ScanCase::beta), all(spec.state, &ScanCase::s0),
      all(spec.state, &ScanCase::z0)};
  ScanSeqs rows;
  for (const ScanCase* c : cases) rows.push_back(c->spec.seqs);
  Stream stream(device, pool);
  Tape tape;
  Ops ops(stream, &tape);
  std::vector<Tensor> watched;
  for (const Tensor& x : in) {
    if (x.empty()) continue;
    tape.Watch(x);
    watched.push_back(x);
  }
  Run run;
  run.out =
      ops.Scan(in[0], in[1], in[2], spec.params, rows, {in[3], in[4], in[5], in[6], spec.final});
  std::vector<Tensor> outputs = {run.out.out, run.out.lse};
  std::vector<Tensor> flows = {all(true, &ScanCase::dout), all(true, &ScanCase::dlse)};
  if (spec.final) {
    outputs.insert(outputs.end(), {run.out.s_out, run.out.z_out});
    flows.insert(flows.end(), {all(true, &ScanCase::ds_out), all(true, &ScanCase::dz_out)});
  }
  const std::vector<Tensor> back =
      ops.status().ok() ? tape.Replay(ops, outputs, flows, watched) : std::vector<Tensor>();
  EXPECT_TRUE(ops.status().ok()) << ops.status();
  run.grads.resize(in.size());
  for (size_t i = 0, w = 0; i < in.size() && w < back.size(); ++i) {
    if (!in[i].empty()) run.grads[i] = back[w++];
  }
  run.work = stream.work();
  run.peak = stream.workspace().peak_bytes();
  return run;
}

// Sums of up to 83 keys and 9 features in float32, gradients of gradients of decays: 1e-4, the
// bounds of the kernel's own tests with states.
void ExpectComposed(const ScanSpec& spec) {
  const ScanCase c(spec);
  Device& cpu = CpuOf(AvailableIsas().back(), 1);
  DecliningDevice declining(cpu);
  BufferPool pool(0, /*poison=*/true);
  const Run got = RunOf(declining, {&c}, &pool), dry = RunOf(declining, {&c}, nullptr);
  const Run kernel = RunOf(cpu, {&c}, &pool);
  if (::testing::Test::HasFailure()) return;
  const LaunchSet scans = SetOf<ScanArgs, ScanGradArgs>();
  EXPECT_EQ(declining.was_declined() & scans, scans);
  for (const Run* run : {&got, &dry}) {
    EXPECT_EQ(run->work.visible_pairs, kernel.work.visible_pairs);
    EXPECT_EQ(run->work.flops, kernel.work.flops);
  }
  EXPECT_GE(dry.peak, got.peak);
  const PlainScanOut want = Forward(c.Plain());
  const PlainScanGrads grads = Gradients(c.Plain(), c.Incoming());
  ExpectClose(Values(got.out.out), want.out, 1e-4, "out");
  ExpectClose(Values(got.out.lse), want.lse, 1e-4, "lse");
  if (spec.final) {
    ExpectClose(Values(got.out.s_out), want.s_out, 1e-4, "s_out");
    ExpectClose(AsRow(Values(got.out.z_out)), want.z_out, 1e-4, "z_out");
  }
  const auto check = [&](size_t i, const PlainTensor& truth, const char* what) {
    if (!got.grads[i].empty()) ExpectClose(Values(got.grads[i]), truth, 1e-4, what);
  };
  check(0, grads.dq, "dq");
  check(1, grads.dk, "dk");
  check(2, grads.dv, "dv");
  check(3, grads.dlog_decay, "dlog_decay");
  check(4, grads.dbeta, "dbeta");
  check(5, grads.ds0, "ds0");
  check(6, grads.dz0, "dz0");
}

ScanSpec Small() {
  return {.B = 2,
          .H = 4,
          .Hkv = 2,
          .Nq = 70,
          .Nk = 83,
          .D = 9,
          .Dv = 7,
          .params = {.causal = true, .eps = 1e-3}};
}

// Keys so small that the states stay bounded.
void UseDelta(ScanSpec* spec) {
  spec->params.rule = ScanRule::kDelta;
  spec->params.den = ScanDen::kOne;
  spec->params.map = FeatureMap::kIdentity;
  spec->mean = 0.7 / 3;
  spec->deviation = 0.5 / 3;
}

TEST(DeclinedScan, DecaysStrengthsAndStates) {
  using Decays = ScanSpec::Decays;
  for (const bool delta : {false, true}) {
    for (const Decays decays : {Decays::kNone, Decays::kKey, Decays::kFeature}) {
      for (const bool all : {false, true}) {
        SCOPED_TRACE(absl::StrCat("delta ", delta, " decays ", static_cast<int>(decays), " ", all));
        ScanSpec spec = Small();
        spec.decays = decays;
        spec.beta = spec.state = spec.final = all;
        if (delta) UseDelta(&spec);
        ExpectComposed(spec);
      }
    }
  }
}

TEST(DeclinedScan, LengthsAndOffsets) {
  for (const bool state : {false, true}) {
    for (const int64_t offset : {-90, -5, 0, 64, 100}) {
      SCOPED_TRACE(absl::StrCat("offset ", offset, " state ", state));
      ScanSpec spec = Small();
      spec.state = spec.final = state;
      spec.seqs = {{.nq = 70, .nk = 40, .offset = offset}, {.nq = 13, .nk = 83, .offset = offset}};
      ExpectComposed(spec);
      spec.seqs = {{.nq = 70, .nk = 0, .offset = offset}, {.nq = 0, .nk = 83, .offset = offset}};
      ExpectComposed(spec);
    }
  }
}

TEST(DeclinedScan, EveryMapAndNormaliser) {
  for (int map = 0; map <= static_cast<int>(FeatureMap::kGelu); ++map) {
    for (int den = 0; den <= static_cast<int>(ScanDen::kAbsClamp); ++den) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(absl::StrCat("map ", map, " den ", den, " causal ", causal));
        ScanSpec spec = Small();
        spec.Nq = 20;
        spec.Nk = 23;
        spec.mean = 0.5;  // keeps the normaliser away from 0
        spec.params.map = static_cast<FeatureMap>(map);
        spec.params.den = static_cast<ScanDen>(den);
        spec.params.causal = causal;
        ExpectComposed(spec);
      }
    }
  }
}

void ExpectSameBits(const Tensor& alone, const Tensor& listed, size_t p, const char* what) {
  ASSERT_EQ(alone.empty(), listed.empty()) << what;
  if (alone.empty()) return;
  const std::vector<double> a = Values(alone).data, b = Values(listed, p).data;
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0) << what;
}

// Symptom: a short problem kept a state for every key of the longest one.
void ExpectAloneAsInAList(const ScanSpec& spec) {
  std::deque<ScanCase> cases;
  const std::vector<std::pair<int64_t, int64_t>> lengths = {
      {3, 5}, {64, 64}, {1, 200}, {65, 129}, {20, 1}};
  for (const auto& [Nq, Nk] : lengths) {
    ScanSpec own = spec;
    own.Nq = Nq, own.Nk = Nk, own.seed = static_cast<unsigned>(cases.size() + 1);
    cases.emplace_back(own);
  }
  std::vector<const ScanCase*> all;
  for (const ScanCase& c : cases) all.push_back(&c);
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  DecliningDevice declining(cpu);
  BufferPool pool(0, /*poison=*/true);
  const Run list = RunOf(declining, all, &pool);
  int64_t planned = 0;
  for (size_t p = 0; p < cases.size(); ++p) {
    SCOPED_TRACE(absl::StrCat("problem ", p));
    planned += RunOf(declining, {all[p]}, nullptr).peak;
    const Run alone = RunOf(declining, {all[p]}, &pool);
    ExpectSameBits(alone.out.out, list.out.out, p, "out");
    ExpectSameBits(alone.out.lse, list.out.lse, p, "lse");
    ExpectSameBits(alone.out.s_out, list.out.s_out, p, "s_out");
    ExpectSameBits(alone.out.z_out, list.out.z_out, p, "z_out");
    for (size_t i = 0; i < list.grads.size(); ++i) {
      ExpectSameBits(alone.grads[i], list.grads[i], p, "gradient");
    }
  }
  EXPECT_LE(list.peak, planned);
}

TEST(DeclinedScan, AProblemOfAListGivesTheBitsThatItGivesAloneAndPlansBoundTheList) {
  ScanSpec spec = Small();
  ExpectAloneAsInAList(spec);
  spec.decays = ScanSpec::Decays::kFeature;
  spec.beta = spec.state = spec.final = true;
  ExpectAloneAsInAList(spec);
  spec.decays = ScanSpec::Decays::kKey;
  UseDelta(&spec);
  ExpectAloneAsInAList(spec);
  ScanSpec exponential = Small();
  exponential.params.map = FeatureMap::kExp;
  ExpectAloneAsInAList(exponential);
}

// A launch takes a second, a product one for each of its elements, on a dry stream and on others.
class SecondsDevice final : public DecliningDevice {
 public:
  using DecliningDevice::DecliningDevice;
  DeviceStatus Run(Stream& stream, Launch launch) override {
    const double before = stream.work().seconds;
    double seconds = 1;
    if (const auto* product = std::get_if<MatMulArgs>(&launch)) {
      for (const auto& problem : product->problems) {
        seconds += static_cast<double>(problem.out.shape.size());
      }
    }
    DeviceStatus status = DecliningDevice::Run(stream, std::move(launch));
    stream.work().seconds = before + (status.ok() ? seconds : 0);
    calls_ += status.ok() ? 1 : 0;
    return status;
  }
  int64_t calls() const { return calls_; }

 private:
  int64_t calls_ = 0;
};

void ExpectCounted(ScanSpec spec) {
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  BufferPool pool(0, /*poison=*/true);
  SecondsDevice device(cpu);
  const auto expect = [&](const std::vector<const ScanCase*>& cases) {
    const double took = RunOf(device, cases, &pool).work.seconds;
    // The device counts in whole seconds; what the host takes to list problems is far below one.
    const double planned = RunOf(device, cases, nullptr).work.seconds;
    EXPECT_EQ(std::floor(planned), took);
    EXPECT_LT(planned - took, 0.1);
  };
  for (const int64_t nk : {82, 83}) {
    ScanSpec single = spec;
    single.B = 1;
    single.seqs = {{.nq = 70, .nk = nk, .offset = 7}};
    const ScanCase one(single);
    expect({&one});
  }
  ScanSpec other = spec;
  spec.seqs = {{.nq = 70, .nk = 83, .offset = 7}, {.nq = 5, .nk = 64, .offset = -2}};
  other.Nq = 3, other.Nk = 130;
  other.seqs = {{.nq = 3, .nk = 129, .offset = 40}, {.nq = 0, .nk = 3, .offset = 5}};
  const ScanCase a(spec), b(other);
  expect({&a, &b});

  std::vector<int64_t> calls;
  for (const int64_t n : {1000, 4000}) {
    spec.Nq = spec.Nk = n;
    spec.seqs = {{.nq = n, .nk = n, .offset = 0}, {.nq = n, .nk = n / 2, .offset = 1}};
    SecondsDevice counted(cpu);
    const ScanCase c(spec);
    RunOf(counted, {&c}, nullptr);
    calls.push_back(counted.calls());
  }
  EXPECT_EQ(calls[0], calls[1]);
}

// Symptom: the time that planning takes grew with the number of keys.
TEST(DeclinedScan, APlanCountsEveryStepAndLaunchesFew) {
  ScanSpec spec = Small();
  spec.state = true;
  for (const bool causal : {false, true}) {
    spec.params.causal = causal;
    ExpectCounted(spec);
  }
  spec.beta = spec.final = true;
  spec.decays = ScanSpec::Decays::kFeature;
  ExpectCounted(spec);
  spec.decays = ScanSpec::Decays::kKey;
  UseDelta(&spec);
  ExpectCounted(spec);
  ScanSpec exponential = Small();
  exponential.params.map = FeatureMap::kExp;
  ExpectCounted(exponential);
}

void ExpectUnusedKeysMayBeNan(FeatureMap map) {
  ScanSpec spec = {.B = 1, .H = 1, .Nq = 4, .Nk = 8, .D = 3, .Dv = 2, .params = {.causal = true}};
  spec.params.map = map;
  spec.seqs = {{.nq = 4, .nk = 8, .offset = 1}};  // the last query sees key 4
  if (map != FeatureMap::kExp) {
    spec.beta = true;
    spec.decays = ScanSpec::Decays::kKey;
  }
  const ScanCase c(spec);
  for (const View& x : {c.k.view(), c.v.view(), c.log_decay.view(), c.beta.view()}) {
    const int64_t columns = x.shape.rank > 3 ? x.shape[3] : 1;
    for (int64_t t = 5; t < x.shape[2]; ++t) {
      for (int64_t d = 0; d < columns; ++d) {
        x.As<float>()[t * x.stride[2] + d] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  Device& cpu = CpuOf(AvailableIsas().back(), 1);
  DecliningDevice declining(cpu);
  BufferPool pool(0, /*poison=*/true);
  const Run got = RunOf(declining, {&c}, &pool), kernel = RunOf(cpu, {&c}, &pool);
  ExpectClose(Values(got.out.out), Values(kernel.out.out), 1e-5, "out");
  for (size_t i = 0; i < got.grads.size(); ++i) {
    if (got.grads[i].empty()) continue;
    const PlainTensor gradient = Values(got.grads[i]);
    for (const double x : gradient.data) ASSERT_TRUE(std::isfinite(x)) << i;
    ExpectClose(gradient, Values(kernel.grads[i]), 1e-5, "gradient");
  }
}

// Symptom: gradients of keys that no query sees were NaN, where the kernel gives 0.
TEST(DeclinedScan, KeysThatNothingDependsOnMayHoldNan) {
  ExpectUnusedKeysMayBeNan(FeatureMap::kEluPlusOne);
  ExpectUnusedKeysMayBeNan(FeatureMap::kExp);
}

// Symptom: keys and queries around 300 lost the digits that a large exponent takes.
TEST(DeclinedScan, LargeExponentsKeepTheirDigits) {
  ScanSpec spec = Small();
  spec.params.map = FeatureMap::kExp;
  spec.mean = 300;
  const ScanCase c(spec);
  Device& cpu = CpuOf(AvailableIsas().back(), 1);
  DecliningDevice declining(cpu);
  BufferPool pool(0, /*poison=*/true);
  ExpectClose(Values(RunOf(declining, {&c}, &pool).out.out), Forward(c.Plain()).out, 2e-6, "out");
}

}  // namespace
}  // namespace attnd::testing
