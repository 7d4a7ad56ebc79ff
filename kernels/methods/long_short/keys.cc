#include "kernels/methods/long_short/keys.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/method/drawn.h"
#include "kernels/method/tensors.h"

namespace attnd {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

class KeyMaker {
 public:
  KeyMaker(Ops& ops, const Inputs& in, const LongShortOptions& o) : ops_(ops), in_(in), o_(o) {
    if (in.tensors.contains("kv_lengths")) valid_ = Valid();
  }

  LongShortKeys Make() const {
    const bool is_nested = o_.ln_order == LnOrder::kNested,
               has_long = RankOf(in_.problems[0], o_) > 0;
    const Tensor k = Hidden(in_.k, 0), v = Hidden(in_.v, 0);
    LongShortKeys keys;
    if (o_.Width() != -1 || is_nested) {
      keys.k = Normed(k, "local_k");
      keys.v = Normed(v, "local_v");
    }
    if (has_long) {
      const Tensor P = ops_.Softmax(InSegments(Hidden(Logits(k), kNothing), kNothing), 3);
      keys.long_k = Normed(Compressed(P, is_nested ? keys.k : k), "global_k");
      keys.long_v = Normed(Compressed(P, is_nested ? keys.v : v), "global_v");
    }
    return keys;
  }

 private:
  // 1 in rows below kv_lengths, else 0.
  Tensor Valid() const {
    std::vector<Shape> shapes;
    std::vector<std::vector<float>> values;
    for (const ProblemShape& p : in_.problems) {
      shapes.push_back({p.B, 1, p.Nk, 1});
      std::vector<float>& of_problem = values.emplace_back();
      if (ops_.stream().is_dry()) continue;
      of_problem.assign(static_cast<size_t>(p.B * p.Nk), 0);
      for (int64_t b = 0; b < p.B; ++b) {
        std::fill_n(of_problem.begin() + b * p.Nk, p.Int("kv_lengths", b, p.Nk), 1.0f);
      }
    }
    return ops_.FromHost(shapes, std::move(values));
  }
  // Rows beyond the lengths may hold NaN.
  Tensor Hidden(const Tensor& x, float value) const {
    if (valid_.empty() || !ops_.status().ok()) return x;
    return ops_.Select(valid_, x, NumberLike(ops_, value, x));
  }

  // Layer norm over D or, ln_scope model, over all features of a position together.
  Tensor Normed(const Tensor& x, const char* name) const {
    if (!o_.dual_ln || !ops_.status().ok()) return x;
    const bool of_head = o_.ln_scope == LnScope::kHead;
    std::vector<Shape> joined, apart, of_table;
    for (size_t p = 0; p < x.size(); ++p) {
      const int64_t B = x[p].shape[0], Hkv = x[p].shape[1], N = x[p].shape[2], D = x[p].shape[3];
      joined.push_back({B, N, Hkv * D});
      apart.push_back({B, N, Hkv, D});
      of_table.push_back(of_head ? Shape{1, Hkv, 1, D} : Shape{1, 1, Hkv * D});
    }
    const auto table = [&](const char* kind) {
      const Tensor sent = Sent(in_, absl::StrCat("ln_", name, "_", kind));
      return sent.empty() ? sent : ops_.Reshape(sent, of_table);
    };
    const Tensor weight = table("weight"), bias = table("bias");
    if (of_head) return ops_.LayerNorm(x, o_.ln_eps, weight, bias);
    const Tensor features = ops_.Reshape(ops_.Transpose(x, 1, 2), joined);
    const Tensor normed = ops_.LayerNorm(features, o_.ln_eps, weight, bias);
    return ops_.Transpose(ops_.Reshape(normed, apart), 1, 2);
  }

  // L of every position, [B,Hkv,Nk,r].
  Tensor Logits(const Tensor& k) const {
    if (const Tensor sent = Sent(in_, "dyn_logits"); !sent.empty()) return sent;
    Tensor bias = Sent(in_, "dyn_bias");
    if (!bias.empty()) {
      std::vector<Shape> shapes;
      for (size_t p = 0; p < bias.size(); ++p) {
        shapes.push_back({1, bias[p].shape[0], 1, bias[p].shape[1]});
      }
      bias = ops_.Reshape(bias, shapes);
    }
    return ops_.MatMul(k, WithRank(ops_, Weight(), 4), {}, bias);
  }
  Tensor Weight() const {
    std::vector<Shape> shapes;
    for (const ProblemShape& p : in_.problems) shapes.push_back({p.Hkv, p.D, RankOf(p, o_)});
    return SentOrDrawn(ops_, in_, "dyn_weight", DrawOfWeight(in_.problems[0].D, o_.seed), shapes);
  }

  // [B,Hkv,Nk,n] -> [B,Hkv,S,l,n]; `fill` behind the last position.
  Tensor InSegments(const Tensor& x, float fill) const {
    if (!ops_.status().ok()) return {};
    std::vector<Shape> missing, segments;
    for (size_t p = 0; p < x.size(); ++p) {
      const Shape& s = x[p].shape;
      const int64_t S = o_.Segments(s[2]);
      // One segment alone ends with the keys: nothing is gained by filling it up.
      const int64_t l = o_.causal && S > 1 ? o_.segment_len : s[2];
      missing.push_back({s[0], s[1], S * l - s[2], s[3]});
      segments.push_back({s[0], s[1], S, l, s[3]});
    }
    if (!o_.causal) return ops_.Reshape(x, segments);
    return ops_.Reshape(ops_.Concat({x, ops_.Constant(fill, missing)}, 2), segments);
  }

  // sum_j P_jc x_j of every segment, [B,Hkv,S r,n].
  Tensor Compressed(const Tensor& P, const Tensor& x) const {
    const Tensor sums = ops_.MatMul(ops_.Transpose(P, 3, 4), InSegments(x, 0));
    if (!ops_.status().ok()) return {};
    std::vector<Shape> shapes;
    for (size_t p = 0; p < sums.size(); ++p) {
      const Shape& s = sums[p].shape;
      shapes.push_back({s[0], s[1], s[2] * s[3], s[4]});
    }
    return ops_.Reshape(sums, shapes);
  }

  Ops& ops_;
  const Inputs& in_;
  const LongShortOptions& o_;
  Tensor valid_;
};

}  // namespace

LongShortKeys KeysOf(Ops& ops, const Inputs& in, const LongShortOptions& o) {
  return KeyMaker(ops, in, o).Make();
}

}  // namespace attnd
