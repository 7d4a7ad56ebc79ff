// A scan problem in memory that shows every wrong access: guard zones around each tensor, NaN in
// padding and in everything that a kernel must write.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/device/stream.h"
#include "tests/plain/plain_scan.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

inline float ToFloat(uint16_t bits, DType dtype) {
  if (dtype == DType::kF16) {
    _Float16 half;
    std::memcpy(&half, &bits, sizeof(half));
    return static_cast<float>(half);
  }
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t ToBits(float value, DType dtype) {
  uint16_t bits;
  if (dtype == DType::kF16) {
    const _Float16 half = static_cast<_Float16>(value);
    std::memcpy(&bits, &half, sizeof(bits));
    return bits;
  }
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  if (value != value) return 0x7FC0;
  return static_cast<uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
}

// A tensor of any float dtype and layout between two guard zones, aligned to its element and no
// more.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, const Shape& shape, Layout layout)
      : guard_(64 + static_cast<size_t>(SizeOf(dtype))),
        bytes_(static_cast<size_t>(shape.size() * SizeOf(dtype)) + 2 * guard_, kGuardByte) {
    std::memset(bytes_.data() + guard_, 0xFF, bytes_.size() - 2 * guard_);
    view_ = DenseView(bytes_.data() + guard_, dtype, shape, layout);
  }

  const View& view() const { return view_; }
  void Set(int64_t b, int64_t h, int64_t n, int64_t d, double value) {
    char* at = At(b, h, n, d);
    const float narrow = static_cast<float>(value);
    if (view_.dtype == DType::kF32) {
      std::memcpy(at, &narrow, sizeof(narrow));
    } else {
      const uint16_t bits = ToBits(narrow, view_.dtype);
      std::memcpy(at, &bits, sizeof(bits));
    }
  }
  double Get(int64_t b, int64_t h, int64_t n, int64_t d) const {
    const char* at = At(b, h, n, d);
    if (view_.dtype == DType::kF32) {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return ToFloat(bits, view_.dtype);
  }
  PlainTensor Plain() const {
    const Shape& s = view_.shape;
    PlainTensor plain(s[0], s[1], s[2], s[3]);
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t n = 0; n < s[2]; ++n) {
          for (int64_t d = 0; d < s[3]; ++d) plain.at(b, h, n, d) = Get(b, h, n, d);
        }
      }
    }
    return plain;
  }
  bool GuardsHold() const {
    for (size_t i = 0; i < guard_; ++i) {
      if (bytes_[i] != kGuardByte || bytes_[bytes_.size() - 1 - i] != kGuardByte) return false;
    }
    return true;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  static constexpr char kGuardByte = 0x5A;

  char* At(int64_t b, int64_t h, int64_t n, int64_t d) const {
    const auto& s = view_.stride;
    return view_.As<char>() +
           SizeOf(view_.dtype) * (b * s[0] + h * s[1] + n * s[2] + (view_.shape.rank > 3 ? d : 0));
  }
  const size_t guard_;
  std::vector<char> bytes_;
  View view_;
};

struct ScanSpec {
  int64_t B = 1, H = 2, Hkv = 1, Nq = 65, Nk = 65, D = 32, Dv = 32;
  ScanParams params = {};
  std::vector<ScanSeq> seqs = {};  // empty: full lengths, offset Nk - Nq
  DType dtype = DType::kF32;
  Layout layout = Layout::kBHND;
  double mean = 0, deviation = 1;  // of q and k
  unsigned seed = 1;
  // What comes with them.
  enum class Decays { kNone, kKey, kFeature } decays = Decays::kNone;
  bool beta = false, state = false, final = false;
  bool repeated = false;        // those that repeat over B and Hkv, by strides of 0
  DType v_dtype = DType::kI32;  // of v and its gradient; kI32: as the others
};

// Keys of a delta rule are kept short: with |phi_k|^2 beta > 2 its state would explode. Their mean
// keeps the normaliser away from 0.
inline ScanSpec Delta(ScanSpec spec) {
  spec.params.rule = ScanRule::kDelta;
  spec.params.den = ScanDen::kOne;
  spec.params.map = FeatureMap::kIdentity;
  spec.params.causal = true;
  spec.mean = 0.7 / std::sqrt(static_cast<double>(spec.D));
  spec.deviation = 0.5 / std::sqrt(static_cast<double>(spec.D));
  return spec;
}

class ScanCase {
 public:
  explicit ScanCase(const ScanSpec& given)
      : spec(Complete(given)),
        q(spec.dtype, {spec.B, spec.H, spec.Nq, spec.D}, spec.layout),
        k(spec.dtype, {spec.B, spec.Hkv, spec.Nk, spec.D}, spec.layout),
        v(VType(spec), {spec.B, spec.Hkv, spec.Nk, spec.Dv}, spec.layout),
        out(spec.dtype, {spec.B, spec.H, spec.Nq, spec.Dv}, spec.layout),
        lse(DType::kF32, {spec.B, spec.H, spec.Nq}, Layout::kBHND),
        dout(spec.dtype, {spec.B, spec.H, spec.Nq, spec.Dv}, spec.layout),
        dlse(DType::kF32, {spec.B, spec.H, spec.Nq}, Layout::kBHND),
        dq(spec.dtype, {spec.B, spec.H, spec.Nq, spec.D}, spec.layout),
        dk(spec.dtype, {spec.B, spec.Hkv, spec.Nk, spec.D}, spec.layout),
        dv(VType(spec), {spec.B, spec.Hkv, spec.Nk, spec.Dv}, spec.layout),
        log_decay(DType::kF32, {Outer(spec.B), Outer(spec.Hkv), spec.Nk, DecayWidth()}, kDense),
        beta(DType::kF32, {Outer(spec.B), Outer(spec.Hkv), spec.Nk}, kDense),
        s0(DType::kF32, {Outer(spec.B), Outer(spec.Hkv), spec.D, spec.Dv}, kDense),
        z0(DType::kF32, {Outer(spec.B), Outer(spec.Hkv), spec.D}, kDense),
        s_out(DType::kF32, {spec.B, spec.Hkv, spec.D, spec.Dv}, kDense),
        z_out(DType::kF32, {spec.B, spec.Hkv, spec.D}, kDense),
        ds_out(DType::kF32, {spec.B, spec.Hkv, spec.D, spec.Dv}, kDense),
        dz_out(DType::kF32, {spec.B, spec.Hkv, spec.D}, kDense),
        dlog_decay(DType::kF32, {spec.B, spec.Hkv, spec.Nk, DecayWidth()}, kDense),
        dbeta(DType::kF32, {spec.B, spec.Hkv, spec.Nk}, kDense),
        ds0(DType::kF32, {spec.B, spec.Hkv, spec.D, spec.Dv}, kDense),
        dz0(DType::kF32, {spec.B, spec.Hkv, spec.D}, kDense) {
    std::mt19937 random(spec.seed);
    Fill(&log_decay, -1.0, 0.0, &random);
    Fill(&beta, 0.1, 0.9, &random);
    Fill(&s0, -1.0, 1.0, &random);
    Fill(&z0, 0.5, 1.5, &random);
    Fill(&ds_out, -1.0, 1.0, &random);
    Fill(&dz_out, -1.0, 1.0, &random);
    FillRows(&q, true, spec.mean, spec.deviation, &random);
    FillRows(&k, false, spec.mean, spec.deviation, &random);
    FillRows(&v, false, 0, 1, &random);
    FillRows(&dout, true, 0, 1, &random);
    FillRows(&dlse, true, 0, 1, &random);
  }

  ScanProblem Problem() const {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .out = out.view(),
            .lse = lse.view(),
            .seqs = spec.seqs,
            .log_decay = spec.decays == ScanSpec::Decays::kNone ? View() : Repeated(log_decay),
            .beta = spec.beta ? Repeated(beta) : View(),
            .s0 = spec.state ? Repeated(s0) : View(),
            .z0 = spec.state ? Repeated(z0) : View(),
            .s_out = spec.final ? s_out.view() : View(),
            .z_out = spec.final ? z_out.view() : View()};
  }
  ScanGradProblem GradProblem() const {
    return {.forward = Problem(),
            .dout = dout.view(),
            .dlse = dlse.view(),
            .ds_out = spec.final ? ds_out.view() : View(),
            .dz_out = spec.final ? dz_out.view() : View(),
            .dq = dq.view(),
            .dk = dk.view(),
            .dv = dv.view(),
            .dlog_decay = spec.decays == ScanSpec::Decays::kNone ? View() : dlog_decay.view(),
            .dbeta = spec.beta ? dbeta.view() : View(),
            .ds0 = spec.state ? ds0.view() : View(),
            .dz0 = spec.state ? dz0.view() : View()};
  }
  PlainScan Plain() const {
    PlainScan plain = {
        .params = spec.params, .q = q.Plain(), .k = k.Plain(), .v = v.Plain(), .seqs = spec.seqs};
    if (spec.decays != ScanSpec::Decays::kNone) plain.log_decay = Spread(log_decay.Plain());
    if (spec.beta) plain.beta = Spread(beta.Plain());
    if (spec.state) plain.s0 = Spread(s0.Plain());
    if (spec.state) plain.z0 = AsRow(Spread(z0.Plain()));
    return plain;
  }
  PlainIncoming Incoming() const {
    PlainIncoming in = {dout.Plain(), dlse.Plain()};
    if (spec.final) in.ds_out = ds_out.Plain();
    if (spec.final) in.dz_out = AsRow(dz_out.Plain());
    return in;
  }
  void Run(Device* device) {
    BufferPool pool(int64_t{1} << 28, /*poison=*/true);
    Stream stream(*device, &pool);
    const ScanProblem problem = Problem();
    ASSERT_TRUE(device->Run(stream, ScanArgs{.params = spec.params, .problems = {problem}}).ok());
    const ScanGradProblem grad = GradProblem();
    ASSERT_TRUE(device->Run(stream, ScanGradArgs{.params = spec.params, .problems = {grad}}).ok());
  }
  std::vector<const GuardedTensor*> Outputs() const {
    return {&out, &lse, &s_out, &z_out, &dq, &dk, &dv, &dlog_decay, &dbeta, &ds0, &dz0};
  }
  bool GuardsHold() const {
    for (const GuardedTensor* t :
         {&q,    &k,  &v,  &out,   &lse,   &dout,   &dlse,   &dq,         &dk,    &dv,  &log_decay,
          &beta, &s0, &z0, &s_out, &z_out, &ds_out, &dz_out, &dlog_decay, &dbeta, &ds0, &dz0}) {
      if (!t->GuardsHold()) return false;
    }
    return true;
  }

  const ScanSpec spec;
  GuardedTensor q, k, v, out, lse, dout, dlse, dq, dk, dv;
  GuardedTensor log_decay, beta, s0, z0, s_out, z_out, ds_out, dz_out, dlog_decay, dbeta, ds0, dz0;

 private:
  static constexpr Layout kDense = Layout::kBHND;

  static DType VType(const ScanSpec& s) { return s.v_dtype == DType::kI32 ? s.dtype : s.v_dtype; }
  int64_t DecayWidth() const { return spec.decays == ScanSpec::Decays::kFeature ? spec.D : 1; }
  int64_t Outer(int64_t n) const { return spec.repeated ? 1 : n; }
  // Over all of B and Hkv.
  View Repeated(const GuardedTensor& t) const {
    View view = t.view();
    view.shape.dims[0] = spec.B;
    view.shape.dims[1] = spec.Hkv;
    if (spec.repeated) view.stride[0] = view.stride[1] = 0;
    return view;
  }
  PlainTensor Spread(const PlainTensor& x) const {
    PlainTensor all(spec.B, spec.Hkv, x.N, x.D);
    for (size_t i = 0; i < all.data.size(); ++i) all.data[i] = x.data[i % x.data.size()];
    return all;
  }
  static void Fill(GuardedTensor* t, double low, double high, std::mt19937* random) {
    std::uniform_real_distribution<double> uniform(low, high);
    const Shape& s = t->view().shape;
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t n = 0; n < s[2]; ++n) {
          for (int64_t d = 0; d < s[3]; ++d) t->Set(b, h, n, d, uniform(*random));
        }
      }
    }
  }
  static ScanSpec Complete(ScanSpec s) {
    if (s.seqs.empty()) s.seqs.assign(s.B, {.nq = s.Nq, .nk = s.Nk, .offset = s.Nk - s.Nq});
    return s;
  }
  // Rows beyond the lengths keep their NaN.
  void FillRows(GuardedTensor* t, bool queries, double mean, double deviation,
                std::mt19937* random) {
    std::normal_distribution<double> normal(mean, deviation);
    const Shape& s = t->view().shape;
    for (int64_t b = 0; b < s[0]; ++b) {
      const int64_t rows = queries ? spec.seqs[b].nq : spec.seqs[b].nk;
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t n = 0; n < rows; ++n) {
          for (int64_t d = 0; d < s[3]; ++d) t->Set(b, h, n, d, normal(*random));
        }
      }
    }
  }
};

// Expects |got - want| <= tolerance * max |want|, and -inf and NaN in the same places.
inline void ExpectClose(const PlainTensor& got, const PlainTensor& want, double tolerance,
                        const std::string& what) {
  double largest = 0, worst = 0;
  ASSERT_EQ(got.data.size(), want.data.size()) << what;
  for (double x : want.data) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  for (size_t i = 0; i < got.data.size(); ++i) {
    const double x = got.data[i], y = want.data[i];
    if (!std::isfinite(y)) {
      EXPECT_TRUE(std::isnan(y) ? std::isnan(x) : x == y) << what << " [" << i << "]: " << x;
      continue;
    }
    const double error = std::fabs(x - y);
    worst = error <= worst ? worst : error;
    if (std::isnan(error)) worst = std::numeric_limits<double>::infinity();
  }
  EXPECT_LE(worst, tolerance * largest + 1e-30) << what << ", largest value " << largest;
}

struct Tolerance {
  double out = 2e-5, grad = 5e-5;
};

// Expects what a run wrote to be what the plain recurrence says.
inline void ExpectSame(const ScanCase& c, const Tolerance& tolerance) {
  const PlainScan plain = c.Plain();
  const PlainScanOut want = Forward(plain);
  const PlainScanGrads grads = Gradients(plain, c.Incoming());
  ExpectClose(c.out.Plain(), want.out, tolerance.out, "out");
  ExpectClose(c.lse.Plain(), want.lse, 1e-5, "lse");
  ExpectClose(c.dq.Plain(), grads.dq, tolerance.grad, "dq");
  ExpectClose(c.dk.Plain(), grads.dk, tolerance.grad, "dk");
  ExpectClose(c.dv.Plain(), grads.dv, tolerance.grad, "dv");
  if (c.spec.decays != ScanSpec::Decays::kNone) {
    ExpectClose(c.dlog_decay.Plain(), grads.dlog_decay, tolerance.grad, "dlog_decay");
  }
  if (c.spec.beta) ExpectClose(c.dbeta.Plain(), grads.dbeta, tolerance.grad, "dbeta");
  if (c.spec.state) {
    ExpectClose(c.ds0.Plain(), grads.ds0, tolerance.grad, "ds0");
    ExpectClose(AsRow(c.dz0.Plain()), grads.dz0, tolerance.grad, "dz0");
  }
  if (c.spec.final) {
    ExpectClose(c.s_out.Plain(), want.s_out, tolerance.out, "s_out");
    ExpectClose(AsRow(c.z_out.Plain()), want.z_out, tolerance.out, "z_out");
  }
  EXPECT_TRUE(c.GuardsHold());
}

// `change` may set values before the run.
template <class Change>
void ExpectMatchesPlain(const ScanSpec& spec, const std::string& isa, const Tolerance& tolerance,
                        const Change& change) {
  SCOPED_TRACE(absl::StrCat(isa, " Nq ", spec.Nq, " Nk ", spec.Nk, " D ", spec.D, " Dv ", spec.Dv,
                            " causal ", spec.params.causal, " map ",
                            static_cast<int>(spec.params.map), " den ",
                            static_cast<int>(spec.params.den)));
  ScanCase c(spec);
  change(&c);
  c.Run(&CpuOf(isa));
  ExpectSame(c, tolerance);
}

inline void ExpectMatchesPlain(const ScanSpec& spec, const Tolerance& tolerance = {}) {
  for (const std::string& isa : AvailableIsas()) {
    ExpectMatchesPlain(spec, isa, tolerance, [](ScanCase*) {});
  }
}

inline constexpr FeatureMap kMaps[] = {
    FeatureMap::kEluPlusOne, FeatureMap::kRelu,     FeatureMap::kReluSquared, FeatureMap::kSquared,
    FeatureMap::kAbs,        FeatureMap::kIdentity, FeatureMap::kExp,         FeatureMap::kSigmoid,
    FeatureMap::kSilu,       FeatureMap::kGelu};

// A normaliser of signed features may come close to 0, where nothing is well conditioned.
inline bool IsSigned(FeatureMap map) {
  return map == FeatureMap::kIdentity || map == FeatureMap::kSilu || map == FeatureMap::kGelu;
}

}  // namespace attnd::testing
