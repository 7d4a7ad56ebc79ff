// The CPU kernels of feature_rows: a row passes from memory to its features, or from their gradient
// to its own, in scratch that stays in L1 for usual sizes. Bound by memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/element/element_cost.h"
#include "kernels/cpu/features/feature_scratch.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/features/feature_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/along/row_pieces-inl.h"
#include "kernels/cpu/element/element-inl.h"
#include "kernels/cpu/simd/feature_map-inl.h"
#include "kernels/cpu/simd/strided-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace {

using element_internal::Map;
using element_internal::VF;
using DF = hn::ScalableTag<float>;

// sum f(a, b) of n elements, f(0, 0) being 0. Pieces are added in float64.
template <class F>
double SumOf(const float* a, const float* b, int64_t n, const F& f) {
  const DF d;
  constexpr int64_t kStep = HWY_LANES(float);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, n);
    VF s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    const auto at = [&](int64_t i) HWY_ATTR { return f(hn::LoadU(d, a + i), hn::LoadU(d, b + i)); };
    int64_t i = begin;
    for (; i + 4 * kStep <= end; i += 4 * kStep) {
      s0 = hn::Add(s0, at(i));
      s1 = hn::Add(s1, at(i + kStep));
      s2 = hn::Add(s2, at(i + 2 * kStep));
      s3 = hn::Add(s3, at(i + 3 * kStep));
    }
    for (; i + kStep <= end; i += kStep) s0 = hn::Add(s0, at(i));
    if (i < end) {
      float rest[2][kStep] = {};
      std::memcpy(rest[0], a + i, static_cast<size_t>(end - i) * sizeof(float));
      std::memcpy(rest[1], b + i, static_cast<size_t>(end - i) * sizeof(float));
      s1 = hn::Add(s1, f(hn::LoadU(d, rest[0]), hn::LoadU(d, rest[1])));
    }
    total += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  }
  return total;
}

double DotOf(const float* a, const float* b, int64_t n) {
  return SumOf(a, b, n, [](VF x, VF y) HWY_ATTR { return hn::Mul(x, y); });
}

// A row of features, and the scratch of its thread.
class FeatureRow {
 public:
  FeatureRow(const FeatureRowsArgs& args, const FeatureScratch& layout, float* scratch)
      : args_(args),
        element_{.op = args.features.map},
        space_(layout.X(scratch)),
        r_(layout.R(scratch)),
        dr_(layout.DR(scratch)),
        phi_(layout.Phi(scratch)),
        dphi_(layout.DPhi(scratch)) {}

  void Forward(const FeatureRowsProblem& p, int64_t row) {
    Load(p, row);
    float* const out = p.out.As<float>() + row * F_;
    const float* const phi = Features(out);
    if (args_.features.norm != RowNorm::kNone) return Divide(phi, NormOf(phi).all, out);
    if (phi != out) std::copy_n(phi, F_, out);
  }

  void Backward(const FeatureRowsProblem& p, int64_t row) {
    Load(p, row);
    g_ = Read(p.dout, row, F_, dphi_);
    float* const out = p.out.As<float>() + row * D_;
    const bool copies = args_.features.nu == 0 && args_.features.map == ElementOp::kCopy;
    if (args_.features.norm != RowNorm::kNone) ToFeatures(copies ? out : dphi_);
    if (g_ == out) return;
    if (args_.features.nu > 0) return FromDpfp(out);
    ElementDerivative(element_, {{g_, x_}, out, D_});
  }

 private:
  void Load(const FeatureRowsProblem& p, int64_t row) {
    D_ = p.x.shape[p.x.shape.rank - 1];
    F_ = args_.features.Features(D_);
    x_ = Read(p.x, row, D_, space_);
  }
  // A row of n elements where it lies, or in `space`.
  static const float* Read(const View& view, int64_t row, int64_t n, float* space) {
    const int64_t stride = view.stride[view.shape.rank - 1];
    const char* const from = view.As<char>() + RowOffset(view, row) * SizeOf(view.dtype);
    if (view.dtype == DType::kF32 && stride == 1) return reinterpret_cast<const float*>(from);
    ReadFloats(view.dtype, from, stride, n, space);
    return space;
  }

  // Calls with(over), over(v) being v over `norm`, which is not 0. The unit of divisions takes ten
  // times as long as that of products, which does where the inverse is a normal number.
  template <class With>
  static void Dividing(float norm, const With& with) {
    constexpr float kMost = 0x1p125f;
    const DF d;
    const VF by = hn::Set(d, norm), inverse = hn::Set(d, 1 / norm);
    if (std::fabs(norm) <= kMost) {
      with([=](VF v) HWY_ATTR { return hn::Mul(v, inverse); });
    } else {
      with([=](VF v) HWY_ATTR { return hn::Div(v, by); });
    }
  }

  // out = phi / norm; 0 where that is 0.
  void Divide(const float* phi, float norm, float* out) const {
    if (norm == 0) {
      std::fill(out, out + F_, 0.0f);
      return;
    }
    Dividing(norm, [&](auto over) { Map<1>(DF(), {{phi}, out, F_}, over); });
  }

  // phi = map(x): what takes long in float64 in float32, to a few ulp.
  void MapRow(float* phi) const {
    const DF d;
    const VF zero = hn::Zero(d), least = hn::Set(d, -200.0f);
    switch (args_.features.map) {
      case ElementOp::kEluPlusOne:
        return Map<1>(d, {{x_}, phi, D_},
                      [=](VF x) HWY_ATTR { return Feature<FeatureMap::kEluPlusOne>(d, x, zero); });
      // Cut below, where the result is 0, so that -inf gives 0 as well.
      case ElementOp::kSilu:
        return Map<1>(d, {{x_}, phi, D_}, [=](VF x) HWY_ATTR {
          return Feature<FeatureMap::kSilu>(d, hn::Max(least, x), zero);
        });
      default:
        return ElementForward(element_, {{x_}, phi, D_});
    }
  }

  // phi before it is divided: in `phi`, or the row itself.
  const float* Features(float* phi) {
    if (args_.features.nu == 0) {
      if (args_.features.map == ElementOp::kCopy) return x_;
      MapRow(phi);
      return phi;
    }
    const DF d;
    const VF zero = hn::Zero(d);
    const auto relu = [=](VF x) HWY_ATTR { return hn::IfThenZeroElse(hn::Lt(x, zero), x); };
    Map<1>(d, {{x_}, r_, D_}, relu);
    Map<1>(d, {{x_}, r_ + D_, D_}, [=](VF x) HWY_ATTR { return relu(hn::Sub(zero, x)); });
    // Twice r in a row holds every rotation of r.
    std::memcpy(r_ + 2 * D_, r_, static_cast<size_t>(2 * D_) * sizeof(float));
    for (int64_t j = 1; j <= args_.features.nu; ++j) {
      Map<2>(d, {{r_, r_ + Turn(j)}, phi + (j - 1) * 2 * D_, 2 * D_},
             [](VF x, VF y) HWY_ATTR { return hn::Mul(x, y); });
    }
    return phi;
  }
  // Where r turned by j begins in twice r.
  int64_t Turn(int64_t j) const { return D_ == 0 ? 0 : 2 * D_ - j % (2 * D_); }

  // Of a row that is divided by one.
  struct Norm {
    float all;
    float root;  // the part of it with a gradient; 0: none
  };
  Norm NormOf(const float* phi) const {
    if (args_.features.norm == RowNorm::kSum) {
      const auto sum = static_cast<float>(SumOf(phi, phi, F_, [](VF x, VF) HWY_ATTR { return x; }));
      return {sum, sum};
    }
    const float root = RootOf(phi), floor = static_cast<float>(args_.features.floor);
    const float offset = static_cast<float>(args_.features.offset);
    return root < floor ? Norm{floor + offset, 0} : Norm{root + offset, root};
  }
  float RootOf(const float* phi) const {
    double squares = DotOf(phi, phi, F_);
    // What a sum of squares loses below float32 is little beside so much.
    const double least = 1e-30 * static_cast<double>(F_);
    if (squares >= least && squares <= std::numeric_limits<float>::max()) {
      return std::sqrt(static_cast<float>(squares) + static_cast<float>(args_.features.eps));
    }
    squares = 0;
    for (int64_t i = 0; i < F_; ++i) squares += static_cast<double>(phi[i]) * phi[i];
    return static_cast<float>(std::sqrt(squares + args_.features.eps));
  }

  // From the gradient of phi over its norm to that of phi: with y = phi / norm,
  // (dy - sum(dy y)) / norm for the sum, (dy - phi sum(dy y) / root) / norm for the root of
  // squares.
  void ToFeatures(float* dphi) {
    const float* const phi = Features(phi_);
    const Norm norm = NormOf(phi);
    if (norm.all == 0) {
      std::fill(dphi, dphi + F_, 0.0f);
    } else {
      Dividing(norm.all, [&](auto over) {
        if (norm.root == norm.all) return ThroughNorm(phi, norm.root, over, over, dphi);
        Dividing(norm.root == 0 ? 1 : norm.root,
                 [&](auto over_root) { ThroughNorm(phi, norm.root, over, over_root, dphi); });
      });
    }
    g_ = dphi;
  }
  // `over` and `over_root` divide by the norm and by its root.
  template <class Over, class OverRoot>
  void ThroughNorm(const float* phi, float root, const Over& over, const OverRoot& over_root,
                   float* dphi) const {
    const DF d;
    // Of quotients: features may be far from 1, and products with them leave float32.
    const auto along = static_cast<float>(
        SumOf(g_, phi, F_, [=](VF g, VF v) HWY_ATTR { return hn::Mul(g, over(v)); }));
    if (args_.features.norm == RowNorm::kSum) {
      const VF shift = hn::Set(d, along);
      Map<1>(d, {{g_}, dphi, F_}, [=](VF g) HWY_ATTR { return over(hn::Sub(g, shift)); });
    } else {
      const VF scale = hn::Set(d, root == 0 ? 0.0f : along);
      Map<2>(d, {{g_, phi}, dphi, F_},
             [=](VF g, VF v) HWY_ATTR { return over(hn::NegMulAdd(scale, over_root(v), g)); });
    }
  }

  // dr_i = sum_j dphi_ji r_(i-j) + dphi_j,(i+j) r_(i+j); the gradient of x flows where it is not 0.
  void FromDpfp(float* out) {
    const DF d;
    const VF zero = hn::Zero(d);
    const int64_t W = 2 * D_;
    if (args_.features.norm == RowNorm::kNone) Features(phi_);
    std::fill(dr_, dr_ + 2 * W, 0.0f);
    const auto add = [](VF g, VF r, VF sum) HWY_ATTR { return hn::MulAdd(g, r, sum); };
    for (int64_t j = 1; j <= args_.features.nu; ++j) {
      const float* dphi = g_ + (j - 1) * W;
      float* const turned = dr_ + Turn(j);
      Map<3>(d, {{dphi, r_ + Turn(j), dr_}, dr_, W}, add);
      Map<3>(d, {{dphi, r_, turned}, turned, W}, add);
    }
    Map<2>(d, {{dr_, dr_ + W}, dr_, W}, [](VF a, VF b) HWY_ATTR { return hn::Add(a, b); });
    Map<3>(d, {{x_, dr_, dr_ + D_}, out, D_}, [=](VF x, VF right, VF left) HWY_ATTR {
      return hn::IfThenElse(hn::Gt(x, zero), right,
                            hn::IfThenElseZero(hn::Lt(x, zero), hn::Neg(left)));
    });
  }

  const FeatureRowsArgs& args_;
  const ElementwiseArgs element_;
  float *const space_, *const r_, *const dr_, *const phi_, *const dphi_;
  const float *x_ = nullptr, *g_ = nullptr;  // the row, and the gradient of its features
  int64_t D_ = 0, F_ = 0;
};

// Rows [begin, end) of a problem.
void FeatureRowsOf(const FeatureRowsArgs& args, const FeatureRowsProblem& p,
                   const FeatureScratch& layout, float* scratch, int64_t begin, int64_t end) {
  FeatureRow row(args, layout, scratch);
  for (int64_t i = begin; i < end; ++i) args.derivative ? row.Backward(p, i) : row.Forward(p, i);
}

}  // namespace
}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const FeatureRowsArgs& args) {
  const Cpu& cpu = device.cpu();
  const FeatureScratch layout(args);
  RowItems items;
  double serial = 0;
  for (const FeatureRowsProblem& p : args.problems) {
    const int64_t D = p.x.shape[p.x.shape.rank - 1], F = args.features.Features(D);
    const int64_t rows = D == 0 ? 0 : p.x.shape.size() / D;
    items.Add(rows, AlongWalk::kItem / std::max<int64_t>(F, 1));
    // The output counts twice: its lines are read before they are written.
    const auto bytes = static_cast<double>(p.x.bytes() + p.dout.bytes() + 2 * p.out.bytes());
    const double flops = FlopsOf(args.features.map) + 20;
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads),
                       static_cast<double>(rows * F) * flops / cpu.thread_flops) +
              30e-9 * static_cast<double>(rows);
  }
  const int64_t bytes = layout.floats() * cpu.threads * static_cast<int64_t>(sizeof(float));
  const std::shared_ptr<Buffer> scratch = Take(stream, bytes);
  if (scratch == nullptr) return NoMemory(stream);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(FeatureRowsOf), HWY_CHOOSE_AVX2(FeatureRowsOf),
                     HWY_CHOOSE_AVX3(FeatureRowsOf));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int thread) {
    const RowItems::Item item = items[i];
    run(args, args.problems[item.problem], layout,
        static_cast<float*>(scratch->data()) + thread * layout.floats(), item.begin, item.end);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
