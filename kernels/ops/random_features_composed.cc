// The composition of random_features, with gradients of x and w.
#include "kernels/ops/composed.h"

namespace attnd {
namespace {

constexpr int kRows = 2;  // the axis of rows

class Composition {
 public:
  Composition(Ops& ops, const RandomFeaturesParams& params) : ops_(ops), o_(params) {}

  RandomFeaturesOut Run(const Tensor& x, const Tensor& w) {
    const Tensor u = Projected(x, w);
    switch (o_.feature) {
      case RandomFeature::kExp:
        return Exponentials(x, u, u);
      case RandomFeature::kCosh:
        return Exponentials(x, u, One(ElementOp::kAbs, u));
      case RandomFeature::kCosSin:
        return Waves(x, u);
      case RandomFeature::kSinCos:
        return {.phi = ops_.Affine(Both(ElementOp::kSin, ElementOp::kCos, u), o_.factor)};
      case RandomFeature::kMapped:
        return {.phi = ops_.Affine(One(o_.map, u), o_.factor, o_.factor * o_.eps)};
    }
    return {};
  }

 private:
  Tensor One(ElementOp op, const Tensor& a) { return ops_.Apply(op, a); }
  Tensor Two(ElementOp op, const Tensor& a, const Tensor& b) { return ops_.Apply(op, a, b); }
  Tensor Both(ElementOp first, ElementOp second, const Tensor& u) {
    return ops_.Concat({One(first, u), One(second, u)}, -1);
  }

  // alpha x w^T.
  Tensor Projected(const Tensor& x, const Tensor& w) {
    if (!ops_.status().ok()) return {};
    std::vector<Shape> grouped, shared, results;
    for (size_t p = 0; p < x.size(); ++p) {
      const Shape &s = x[p].shape, &ws = w[p].shape;
      grouped.push_back({s[0], ws[1], s[1] / ws[1], s[2], s[3]});
      shared.push_back({1, ws[1], 1, ws[2], ws[3]});
      results.push_back({s[0], s[1], s[2], ws[2]});
    }
    const Tensor columns = ops_.Transpose(ops_.Reshape(w, shared), 3, 4);
    const Tensor u = ops_.MatMul(ops_.Reshape(x, grouped), columns, {.alpha = o_.alpha});
    return ops_.Reshape(u, results);
  }

  Tensor HalfSquare(const Tensor& x) {
    const Tensor squares = ops_.Reduce(ReduceOp::kSum, One(ElementOp::kSquare, x), -1);
    return ops_.Affine(squares, o_.alpha * o_.alpha / 2);
  }

  Tensor Shift(const Tensor& of_rows) {
    const Tensor s = ops_.Stop(of_rows);
    return o_.shares_shift ? ops_.Reduce(ReduceOp::kMax, s, kRows) : s;
  }

  // `sized`: what s is the largest of.
  RandomFeaturesOut Exponentials(const Tensor& x, const Tensor& u, const Tensor& sized) {
    const Tensor s = Shift(ops_.Reduce(ReduceOp::kMax, sized, -1));
    // Added rather than subtracted: the gradients of sums are passed on as they are.
    const Tensor less = Two(ElementOp::kSubtract, ops_.Affine(HalfSquare(x), -1), s);
    const auto power = [&](const Tensor& of) {
      return One(ElementOp::kExp, Two(ElementOp::kAdd, of, less));
    };
    const bool has_signs = o_.feature == RandomFeature::kCosh;
    const Tensor e = has_signs ? ops_.Concat({power(u), power(ops_.Affine(u, -1))}, -1) : power(u);
    return {.phi = ops_.Affine(e, o_.factor, o_.factor * o_.eps), .shift = s};
  }

  RandomFeaturesOut Waves(const Tensor& x, const Tensor& u) {
    const Tensor h = HalfSquare(x), s = Shift(h);
    const Tensor size = One(ElementOp::kExp, Two(ElementOp::kSubtract, h, s));
    const Tensor waves = Both(ElementOp::kCos, ElementOp::kSin, u);
    return {.phi = Two(ElementOp::kMultiply, waves, ops_.Affine(size, o_.factor)), .shift = s};
  }

  Ops& ops_;
  const RandomFeaturesParams& o_;
};

}  // namespace

RandomFeaturesOut ComposeRandomFeatures(Ops& ops, const Tensor& x, const Tensor& w,
                                        const RandomFeaturesParams& params) {
  return Composition(ops, params).Run(x, w);
}

}  // namespace attnd
