// Attention so large that the library of a CUDA device computes it, with what is right.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/attend.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/cuda/on_host.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

// 2^30 multiply-adds as it stands.
struct AttentionSizes {
  DType dtype = DType::kF16;
  int64_t H = 32, Hkv = 16, Nq = 512, Nk = 512, D = 64, Dv = 64;
  int64_t lo = kUnbounded, hi = kUnbounded;  // as BandSource
  Layout layout = Layout::kBHND;
  std::vector<Lengths> lengths = {{512, 512}};  // of each sequence
};
// A query sees the keys up to 256 after its own row.
inline AttentionSizes CausalSizes(DType dtype) {
  return {.dtype = dtype, .Hkv = 32, .Nk = 768, .hi = 256, .lengths = {{512, 768}}};
}

// [B,H,N,D] in either order of memory: random, or NaN where the seed is 0.
struct LargeTensor {
  LargeTensor(unsigned seed, const AttentionSizes& of, int64_t H, int64_t N, int64_t D) {
    const auto B = static_cast<int64_t>(of.lengths.size());
    const bool by_rows = of.layout == Layout::kBNHD;
    const Shape shape = by_rows ? Shape{B, N, H, D} : Shape{B, H, N, D};
    array = seed == 0 ? TestArray(of.dtype, shape) : TestArray::Random(seed, of.dtype, shape);
    view = array.view();
    if (by_rows) {
      std::swap(view.shape.dims[1], view.shape.dims[2]);
      std::swap(view.stride[1], view.stride[2]);
    }
  }
  TestArray array;
  View view;
};

class LargeAttention {
 public:
  static constexpr double kScale = 0.125;

  explicit LargeAttention(const AttentionSizes& of)
      : sizes(of),
        q_(1, of, of.H, of.Nq, of.D),
        k_(2, of, of.Hkv, of.Nk, of.D),
        v_(3, of, of.Hkv, of.Nk, of.Dv),
        out_(0, of, of.H, of.Nq, of.Dv),
        lse_(DType::kF32, {static_cast<int64_t>(of.lengths.size()), of.H, of.Nq}) {}

  AttendProblem problem() const {
    AttendProblem p{.q = q_.view, .k = k_.view, .v = v_.view, .out = out_.view, .lse = lse_.view()};
    for (const Lengths& n : sizes.lengths) {
      const PatternSource source = BandSource(sizes.Nq, sizes.Nk, sizes.lo, sizes.hi, n);
      AttendSeq seq{.nq = n.nq,
                    .nk = n.nk,
                    .visible_pairs = source.visible_pairs,
                    .visible_tiles = source.visible_tiles,
                    .pattern_bytes = source.host.bytes};
      if (source.build != nullptr) seq.pattern = std::make_shared<const Pattern>(source.build());
      p.seqs.push_back(std::move(seq));
    }
    return p;
  }
  // A sequence as a problem of its own, with results of its own.
  LargeAttention Alone(size_t b) const {
    AttentionSizes one = sizes;
    one.lengths = {sizes.lengths[b]};
    LargeAttention alone(one);
    for (auto [to, from] : {std::pair{&alone.q_, &q_}, {&alone.k_, &k_}, {&alone.v_, &v_}}) {
      PlainArray numbers(to->view.shape);
      const PlainArray all = ReadView(from->view);
      std::copy_n(all.values.begin() + static_cast<int64_t>(b * numbers.values.size()),
                  numbers.values.size(), numbers.values.begin());
      WriteView(numbers, to->view);
    }
    return alone;
  }
  // A number of row j of the values of the first kv head of a sequence.
  void MakeInfinite(int64_t b, int64_t j) {
    PlainArray v = ReadView(v_.view);
    v.At({b, 0, j, 5}) = INFINITY;
    WriteView(v, v_.view);
  }
  void Clear() {
    WriteView(PlainArray(out_.view.shape, NAN), out_.view);
    lse_.Write(PlainArray(lse_.view().shape, NAN));
  }
  // Both results of a sequence.
  std::vector<double> ResultsOf(size_t b) const {
    std::vector<double> results;
    for (const View& view : {out_.view, lse_.view()}) {
      const PlainArray all = ReadView(view);
      const auto size = static_cast<int64_t>(all.values.size() / sizes.lengths.size());
      const auto begin = all.values.begin() + static_cast<int64_t>(b) * size;
      results.insert(results.end(), begin, begin + size);
    }
    return results;
  }

  // Some rows of some heads against sums in double. Rows beyond a sequence give 0 and -inf.
  void Expect() const {
    const PlainArray q = ReadView(q_.view), k = ReadView(k_.view), v = ReadView(v_.view),
                     out = ReadView(out_.view), lse = lse_.Read();
    for (int64_t b = 0; b < static_cast<int64_t>(sizes.lengths.size()); ++b) {
      const Lengths n = sizes.lengths[static_cast<size_t>(b)];
      for (const int64_t h : {int64_t{0}, int64_t{1}, sizes.H / 2 + 1, sizes.H - 1}) {
        for (const int64_t i : {int64_t{0}, int64_t{77}, n.nq / 2, n.nq - 1, sizes.Nq - 1}) {
          ExpectRow({b, h, i}, n, q, k, v, out, lse);
        }
      }
    }
    EXPECT_TRUE(out_.array.GuardsIntact() && lse_.GuardsIntact());
  }

  const AttentionSizes sizes;

 private:
  struct Row {
    int64_t b, h, i;
  };

  void ExpectRow(const Row& at, const Lengths& n, const PlainArray& q, const PlainArray& k,
                 const PlainArray& v, const PlainArray& out, const PlainArray& lse) const {
    const auto [b, h, i] = at;
    const int64_t kv = h / (sizes.H / sizes.Hkv);
    const double got_lse = lse.At({b, h, i});
    if (i >= n.nq) {
      EXPECT_EQ(got_lse, -INFINITY) << b << " " << h << " " << i;
      for (int64_t d = 0; d < sizes.Dv; ++d) EXPECT_EQ(out.At({b, h, i, d}), 0);
      return;
    }
    const int64_t begin = sizes.lo == kUnbounded ? 0 : std::max<int64_t>(0, i + sizes.lo);
    const int64_t end = sizes.hi == kUnbounded ? n.nk : std::min(n.nk, i + sizes.hi + 1);
    std::vector<double> weights;
    double total = 0;
    for (int64_t j = begin; j < end; ++j) {
      double score = 0;
      for (int64_t d = 0; d < sizes.D; ++d) score += q.At({b, h, i, d}) * k.At({b, kv, j, d});
      total += weights.emplace_back(std::exp(score * kScale));
    }
    // Factors are below 1: in whatever order, a score of D products is off by less than D sums of
    // up to D times half an ulp, and a weight by e to the power of that.
    const double score_error = kScale * static_cast<double>(sizes.D * sizes.D) * 0x1p-24;
    EXPECT_NEAR(got_lse, std::log(total), 2 * score_error + 1e-5) << b << " " << h << " " << i;
    const double u = sizes.dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
    double worst = 0;
    for (int64_t d = 0; d < sizes.Dv; ++d) {
      double want = 0, size = 0;
      for (int64_t j = begin; j < end; ++j) {
        const double term = weights[static_cast<size_t>(j - begin)] / total * v.At({b, kv, j, d});
        want += term, size += std::fabs(term);
      }
      if (std::isinf(want)) {
        EXPECT_FALSE(std::isfinite(out.At({b, h, i, d})));
        continue;
      }
      // Weights may be rounded to 16 bits, and the result is (kernels/README.md).
      const double allowed = u * (size + std::fabs(want)) + 4 * score_error * size;
      const double error = std::fabs(out.At({b, h, i, d}) - want) / allowed;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    EXPECT_LE(worst, 1) << "sequence " << b << " head " << h << " row " << i;
  }

  LargeTensor q_, k_, v_, out_;
  TestArray lse_;
};

// Runs what is planned as `planned`, with no more memory than that.
inline void RunAsPlanned(Device& device, const Launch& planned, const Launch& launch) {
  Stream dry(device, nullptr);
  ASSERT_TRUE(device.Run(dry, planned).ok());
  BufferPool pool(/*retain_bytes=*/0, /*poison=*/true);
  Stream stream(device, &pool);
  const DeviceStatus status = device.Run(stream, launch);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_LE(stream.workspace().peak_bytes(), dry.workspace().peak_bytes());
}

// Runs them in one launch; all numbers of the results are NaN before.
inline void RunAttention(Device& device, const std::vector<LargeAttention*>& attentions) {
  AttendArgs args{.params = {.scale = LargeAttention::kScale}};
  for (LargeAttention* attention : attentions) {
    attention->Clear();
    args.problems.push_back(attention->problem());
  }
  AttendArgs planned = args;
  for (AttendProblem& p : planned.problems) {
    for (AttendSeq& seq : p.seqs) seq.pattern = nullptr;
  }
  RunAsPlanned(device, planned, args);
}

// Of a device behind OnHost.
inline CudaLibrary AttentionLibraryOf(Device& device) {
  return CudaLibraryOf(static_cast<OnHost&>(device).inner(), "cuDNN");
}

}  // namespace attnd::testing
