// Random problems for the benchmark of attend.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/predicates/windows.h"
#include "tests/bench/measure.h"

namespace attnd {

struct BenchSizes {
  int64_t H = 8, Hkv = 8, Nq = 0, Nk = 0, D = 64;
  DType dtype = DType::kF32;
  std::shared_ptr<const Pattern> pattern;
  AttendParams params = {};
  bool bias = false, alibi = false, sinks = false, labels = false, gradients = false;
  int64_t L = 0;  // rows of r
};

// The tensors of one problem with every view that both directions need.
class BenchProblem {
 public:
  explicit BenchProblem(const BenchSizes& sizes) : s_(sizes) {
    s_.params.scale = 1 / std::sqrt(static_cast<double>(s_.D));
    const Shape q = {1, s_.H, s_.Nq, s_.D}, k = {1, s_.Hkv, s_.Nk, s_.D};
    const DType f32 = DType::kF32;
    p_ = {Random(q), Random(k), Random(k), Empty(s_.dtype, q), Empty(f32, {1, s_.H, s_.Nq}), {}};
    if (s_.gradients) {
      dout_ = Random(q);
      dq_ = Empty(s_.dtype, q);
      dk_ = Empty(s_.dtype, k);
      dv_ = Empty(s_.dtype, k);
    }
    const DType dtype = s_.dtype;
    s_.dtype = f32;
    if (s_.bias) p_.terms.bias = Random({1, s_.H, s_.Nq, s_.Nk});
    if (s_.alibi) p_.terms.alibi_slopes = Random({1, s_.H});
    if (s_.sinks) p_.terms.sinks = Random({1, s_.H});
    if (s_.labels) p_.terms.table = Random({1, s_.H, s_.Nq, kLabels});
    if (s_.L > 0) {
      p_.terms.q_rel = Random(q);
      p_.terms.r = Random({1, s_.H, s_.L, s_.D});
      if (s_.gradients) {
        dterms_.q_rel = Empty(dtype, q);
        dterms_.r = Empty(f32, p_.terms.r.shape);
      }
    }
    const auto tiles = [](int64_t n) { return std::ceil(static_cast<double>(n) / kTile); };
    AttendSeq seq = {.nq = s_.Nq, .nk = s_.Nk, .pattern = s_.pattern, .offset = s_.Nk - s_.Nq};
    seq.visible_pairs = static_cast<double>(s_.Nq) * static_cast<double>(s_.Nk);
    seq.visible_tiles = tiles(s_.Nq) * tiles(s_.Nk);
    if (s_.pattern != nullptr) {
      seq.visible_pairs = static_cast<double>(s_.pattern->visible_pairs);
      seq.visible_tiles = static_cast<double>(s_.pattern->visible_tiles);
    }
    seqs_.push_back(seq);
  }
  static constexpr int64_t kLabels = 33;

  // Credited FLOPs of the forward; the backward has 2.5 times as many.
  double flops() const { return 4.0 * seqs_[0].visible_pairs * static_cast<double>(s_.H * s_.D); }
  const AttendParams& params() const { return s_.params; }
  AttendProblem Forward() const {
    AttendProblem p = p_;
    p.seqs = seqs_;
    return p;
  }
  AttendGradProblem Backward() const { return {Forward(), dout_, View(), dq_, dk_, dv_, dterms_}; }

 private:
  View Empty(DType dtype, const Shape& shape) {
    memory_.emplace_back(static_cast<size_t>(shape.size() * SizeOf(dtype)));
    return DenseView(memory_.back().data(), dtype, shape);
  }
  // Of s_.dtype, normal; halves by cutting mantissas off. They repeat after a million, which takes
  // less time to make than to attend to.
  View Random(const Shape& shape) {
    const View view = Empty(s_.dtype, shape);
    std::normal_distribution<float> normal;
    const int64_t made = std::min(shape.size(), int64_t{1} << 20);
    for (int64_t i = 0; i < made; ++i) {
      const float x = normal(random_);
      if (s_.dtype == DType::kF32) {
        view.As<float>()[i] = x;
      } else {
        view.As<uint16_t>()[i] = Cut(x);
      }
    }
    auto& bytes = memory_.back();
    const auto period = static_cast<size_t>(made * SizeOf(s_.dtype));
    for (size_t i = period; i < bytes.size(); i += period) {
      std::memcpy(bytes.data() + i, bytes.data(), std::min(period, bytes.size() - i));
    }
    return view;
  }

  uint16_t Cut(float x) const {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (s_.dtype == DType::kBF16) return static_cast<uint16_t>(bits >> 16);
    // The exponent of float16 is 112 less; numbers below its normal ones become zero.
    const uint32_t rest = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    return static_cast<uint16_t>(rest < 113u << 23 ? sign : sign | ((rest >> 13) - (112 << 10)));
  }

  BenchSizes s_;
  std::mt19937 random_{1};
  std::vector<std::vector<char, LineAllocator<char>>> memory_;
  AttendProblem p_;
  View dout_, dq_, dk_, dv_;
  AttendTermGrads dterms_;
  std::vector<AttendSeq> seqs_;
};

inline std::shared_ptr<const Pattern> BandPattern(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi) {
  PatternBuilder builder(Nq, Nk);
  builder.Add(Band(lo, hi));
  return std::make_shared<Pattern>(std::move(builder).Build());
}
inline std::shared_ptr<const Pattern> BandPattern(int64_t N, int64_t lo, int64_t hi) {
  return BandPattern(N, N, lo, hi);
}

// Each tile visible with this probability.
inline std::shared_ptr<const Pattern> RandomTiles(int64_t N, double density) {
  PatternBuilder builder(N, N);
  std::mt19937 random(2);
  std::bernoulli_distribution visible(density);
  for (int64_t q = 0; q < N / kTile; ++q) {
    for (int64_t k = 0; k < N / kTile; ++k) {
      if (visible(random)) builder.AddFull(q, k, 1);
    }
  }
  return std::make_shared<Pattern>(std::move(builder).Build());
}

// Every 64 queries share a list of `keys` random rows.
inline std::shared_ptr<const Pattern> GatheredKeys(int64_t N, int64_t keys) {
  const int64_t tiles = N / kTile, each = keys / kTile;
  PatternBuilder builder(N, tiles * keys);
  for (int64_t q = 0; q < tiles; ++q) builder.AddFull(q, q * each, each);
  Pattern pattern = std::move(builder).Build();
  std::mt19937 random(3);
  for (int64_t s = 0; s < tiles * keys; ++s) {
    pattern.key_rows.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(N)));
  }
  return std::make_shared<Pattern>(std::move(pattern));
}

// Every query sees every key, with labels.
inline std::shared_ptr<const Pattern> Labelled(int64_t N) {
  PatternBuilder builder(N, N);
  for (int64_t q = 0; q < N / kTile; ++q) builder.AddFull(q, 0, N / kTile);
  Pattern pattern = std::move(builder).Build();
  TileTerms terms;
  std::mt19937 random(4);
  for (int64_t i = 0; i < kTile * kTile; ++i) {
    terms.labels.push_back(static_cast<uint16_t>(random() % BenchProblem::kLabels));
  }
  pattern.terms.push_back(std::move(terms));
  for (Run& run : pattern.by_query.runs) run.terms = 0;
  for (Run& run : pattern.by_key.runs) run.terms = 0;
  return std::make_shared<Pattern>(std::move(pattern));
}

}  // namespace attnd
