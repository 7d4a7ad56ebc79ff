// Ops::Attend with every term, over parts, and Ops::ColumnMass, on the plain device.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Tensor TensorOf(const TestArray& array) { return Tensor({array.view()}, {nullptr}); }

// One problem with every tensor that attend takes. Two query heads share a kv head.
struct Everything {
  static constexpr int64_t B = 2, H = 4, Hkv = 2, Nq = 5, Nk = 6, Nk2 = 3, D = 3, Dv = 2;
  std::vector<TestArray> arrays;
  std::vector<Tensor> tensors;  // q, k, v, then as in AttendTensors without row_weight

  explicit Everything(unsigned seed = 1) {
    const std::vector<Shape> shapes = {
        {B, H, Nq, D},     {B, Hkv, Nk, D}, {B, Hkv, Nk, Dv}, {B, Hkv, Nk2, D},
        {B, Hkv, Nk2, Dv}, {1, H, 1, Nk},   {1, H},           {B, H},
        {B, H, Nq, 3},     {B, H, Nq, D},   {1, H, 4, D}};
    for (const Shape& shape : shapes) {
      arrays.push_back(TestArray::Random(seed++, DType::kF32, shape));
      tensors.push_back(TensorOf(arrays.back()));
    }
  }
};

AttendTensors TermsOf(const std::vector<Tensor>& t) {
  return {.k2 = t[3],
          .v2 = t[4],
          .bias = t[5],
          .alibi_slopes = t[6],
          .sinks = t[7],
          .table = t[8],
          .q_rel = t[9],
          .r = t[10]};
}

// One tile over all query rows and the key rows `keys`, every pair visible but those of `hidden`,
// with labels and a constant.
std::shared_ptr<const Pattern> OneTile(std::vector<int32_t> keys,
                                       const std::function<bool(int64_t, int64_t)>& sees) {
  Pattern p{.Nq = Everything::Nq, .Nk = static_cast<int64_t>(keys.size())};
  TileMask mask{};
  TileTerms terms;
  terms.labels.assign(kTile * kTile, TileTerms::kNoLabel);
  terms.bias.assign(kTile * kTile, 0);
  for (int64_t k = 0; k < p.Nk; ++k) {
    for (int64_t q = 0; q < p.Nq; ++q) {
      if (sees(q, keys[k])) mask[k] |= uint64_t{1} << q;
      if ((k + q) % 4 != 3) terms.labels[k * kTile + q] = static_cast<uint16_t>((k + q) % 4);
      terms.bias[k * kTile + q] = k == 1 ? std::log(2.0f) : 0;
    }
  }
  p.by_query =
      p.by_key = {.begin = {0, 1}, .runs = {{.first = 0, .count = 1, .mask = 0, .terms = 0}}};
  p.masks = {mask};
  p.terms = {terms};
  p.key_bias.assign(keys.size(), 0.25f);
  p.key_rows = std::move(keys);
  return std::make_shared<const Pattern>(std::move(p));
}

AttendSeqs SeqsOf(const std::shared_ptr<const Pattern>& pattern, int64_t offset = 1) {
  const bool gathers = pattern != nullptr;
  return {{{.nq = 4, .nk = 6, .pattern = pattern, .offset = offset, .gathers = gathers},
           {.nq = 5, .nk = 6, .pattern = pattern, .offset = offset, .gathers = gathers}}};
}

class AttendOpsTest : public ::testing::Test {
 protected:
  using Formula = std::function<AttendOut(Ops&, const std::vector<Tensor>&)>;

  static double Weight(size_t e, bool lse) { return std::sin(0.9 * e + (lse ? 5 : 1)); }

  double Loss(const Formula& formula, const std::vector<Tensor>& inputs) {
    BufferPool pool;
    Stream stream(device_, &pool);
    Ops ops(stream, nullptr);
    const AttendOut out = formula(ops, inputs);
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    double sum = 0;
    for (const Tensor* x : {&out.out, &out.lse}) {
      if (x->empty()) continue;
      const PlainArray values = ReadView((*x)[0]);
      for (size_t e = 0; e < values.values.size(); ++e) {
        if (std::isfinite(values.values[e])) sum += Weight(e, x == &out.lse) * values.values[e];
      }
    }
    return sum;
  }

  std::vector<TestArray> Gradients(const Formula& formula, const std::vector<Tensor>& inputs) {
    BufferPool pool(0, /*poison=*/true);
    Stream stream(device_, &pool);
    Tape tape;
    Ops ops(stream, &tape);
    for (const Tensor& input : inputs) tape.Watch(input);
    const AttendOut out = formula(ops, inputs);
    std::vector<Tensor> outputs, flows;
    std::vector<TestArray> arrays;
    for (const Tensor* x : {&out.out, &out.lse}) {
      if (x->empty()) continue;
      TestArray& flow = arrays.emplace_back(DType::kF32, (*x)[0].shape);
      PlainArray values((*x)[0].shape);
      for (size_t e = 0; e < values.values.size(); ++e) values.values[e] = Weight(e, x == &out.lse);
      flow.Write(values);
      outputs.push_back(*x);
      flows.push_back(TensorOf(flow));
    }
    const std::vector<Tensor> grads = tape.Replay(ops, outputs, flows, inputs);
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    std::vector<TestArray> result;
    for (size_t i = 0; i < inputs.size() && ops.status().ok(); ++i) {
      result.emplace_back(inputs[i][0].dtype, inputs[i][0].shape);
      if (!grads[i].empty()) result.back().Write(ReadView(grads[i][0]));
    }
    return result;
  }

  // Outputs are stored in float32 (6e-8 each), so a difference over 1/64 is exact to 1e-4, its
  // truncation error is below 2e-3 for these functions of unit scale.
  void ExpectGradientsMatch(const Formula& formula, Everything& x,
                            const std::vector<size_t>& which) {
    const std::vector<TestArray> grads = Gradients(formula, x.tensors);
    ASSERT_EQ(grads.size(), x.tensors.size());
    for (size_t i : which) {
      PlainArray values = x.arrays[i].Read();
      const PlainArray got = grads[i].Read();
      double largest = 0;
      for (size_t e = 0; e < values.values.size(); ++e) {
        const double saved = values.values[e];
        const auto at = [&](double value) {
          values.values[e] = value;
          x.arrays[i].Write(values);
          return Loss(formula, x.tensors);
        };
        const double expected = (at(saved + 1.0 / 128) - at(saved - 1.0 / 128)) * 64;
        at(saved);
        EXPECT_NEAR(got.values[e], expected, 2e-3 * (1 + std::fabs(expected)))
            << "input " << i << " element " << e;
        largest = std::max(largest, std::fabs(expected));
      }
      EXPECT_GT(largest, 1e-3) << "input " << i << " changes nothing";
    }
  }

  PlainDevice device_;
};

const std::vector<size_t> kAll = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

bool Causal(int64_t i, int64_t j) { return j >= Everything::Nk || j <= i + 1; }

TEST_F(AttendOpsTest, GradientsOfEveryTerm) {
  Everything x;
  const AttendSeqs seqs = SeqsOf(OneTile({0, 5, 8, 2, 1, 7, 4, -1, 3, 0}, Causal));
  const Formula formula = [&](Ops& ops, const std::vector<Tensor>& t) {
    return ops.Attend(t[0], t[1], t[2], {.scale = 0.7, .softcap = 2}, seqs, TermsOf(t));
  };
  ExpectGradientsMatch(formula, x, kAll);
}

TEST_F(AttendOpsTest, GradientsOfEveryWeighting) {
  for (Weighting weighting :
       {Weighting::kGelu, Weighting::kSoftplus, Weighting::kIdentity, Weighting::kSigmoid,
        Weighting::kRelu, Weighting::kReluSquared, Weighting::kRelu6}) {
    SCOPED_TRACE(static_cast<int>(weighting));
    Everything x(7);
    const TestArray row_weight = TestArray::Random(5, DType::kF32, {1, 4, 5}, Memory::kDense, 0, 1);
    const AttendSeqs seqs = SeqsOf(OneTile({0, 5, 8, 2, 1, 7, 4, 3}, Causal));
    const Formula formula = [&](Ops& ops, const std::vector<Tensor>& t) {
      AttendTensors terms = TermsOf(t);
      terms.sinks = {};
      terms.row_weight = TensorOf(row_weight);
      const AttendOut out =
          ops.Attend(t[0], t[1], t[2], {.scale = 0.7, .weighting = weighting}, seqs, terms);
      EXPECT_TRUE(out.lse.empty());
      return out;
    };
    // A kink between the two points of a difference invalidates it; q affects the fewest pairs.
    const bool smooth = weighting < Weighting::kRelu || weighting > Weighting::kReluSquared;
    ExpectGradientsMatch(formula, x,
                         smooth && weighting != Weighting::kRelu6
                             ? std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 8, 9, 10}
                             : std::vector<size_t>{2, 4});
  }
}

TEST_F(AttendOpsTest, PartsEqualTheWhole) {
  Everything x(3);
  const std::vector<int32_t> keys = {0, 5, 8, 2, 1, 7, 4, 3, 6};
  const auto part_of = [&](int64_t part) {
    return SeqsOf(OneTile(
        keys, [part](int64_t i, int64_t j) { return Causal(i, j) && (i + j) % 3 == part; }));
  };
  const std::vector<AttendSeqs> parts = {part_of(0), part_of(1), part_of(2)};
  const AttendSeqs whole = SeqsOf(OneTile(keys, Causal));
  const AttendParams params{.scale = 0.7, .softcap = 2};
  const Formula in_parts = [&](Ops& ops, const std::vector<Tensor>& t) {
    return ops.Attend(t[0], t[1], t[2], params, parts, TermsOf(t));
  };
  const Formula at_once = [&](Ops& ops, const std::vector<Tensor>& t) {
    return ops.Attend(t[0], t[1], t[2], params, whole, TermsOf(t));
  };
  EXPECT_NEAR(Loss(in_parts, x.tensors), Loss(at_once, x.tensors), 1e-5);
  const std::vector<TestArray> some = Gradients(in_parts, x.tensors);
  const std::vector<TestArray> all = Gradients(at_once, x.tensors);
  for (size_t i : kAll) {
    SCOPED_TRACE(i);
    ExpectNear(some[i].Read(), all[i].Read(), 1e-5, 1e-5);
  }
  // One launch a part each way, one merge, and a sum for every input of the second and third part;
  // the sinks have one.
  const DeviceCalls before = device_.calls();
  Gradients(in_parts, x.tensors);
  EXPECT_EQ(device_.calls().attend - before.attend, 3);
  EXPECT_EQ(device_.calls().attend_grad - before.attend_grad, 3);
  EXPECT_EQ(device_.calls().other - before.other, 1 + 2 * 10);
}

TEST_F(AttendOpsTest, PartsOfHalfsAreSummedInFloat32) {
  // Given q of bfloat16
  const TestArray q = TestArray::Random(1, DType::kBF16, {1, 1, 5, 3}),
                  k = TestArray::Random(2, DType::kBF16, {1, 1, 6, 3}),
                  v = TestArray::Random(3, DType::kBF16, {1, 1, 6, 2});
  const auto seqs_of = [](int64_t part) {
    return AttendSeqs{
        {{.nq = 5,
          .nk = 6,
          .pattern = OneTile({0, 1, 2, 3, 4, 5},
                             [&](int64_t i, int64_t j) { return (i + j) % 2 == part; }),
          .gathers = true}}};
  };
  const Formula formula = [&](Ops& ops, const std::vector<Tensor>& t) {
    const AttendOut out =
        ops.Attend(t[0], t[1], t[2], {}, std::vector<AttendSeqs>{seqs_of(0), seqs_of(1)});
    EXPECT_EQ(out.out[0].dtype, DType::kBF16);
    return out;
  };
  const std::vector<Tensor> inputs = {TensorOf(q), TensorOf(k), TensorOf(v)};
  const std::vector<TestArray> grads = Gradients(formula, inputs);
  // Then gradients come back as bfloat16, and differ from those of one part by one rounding
  const Formula whole = [&](Ops& ops, const std::vector<Tensor>& t) {
    return ops.Attend(
        t[0], t[1], t[2], {},
        {{{.nq = 5,
           .nk = 6,
           .pattern = OneTile({0, 1, 2, 3, 4, 5}, [](int64_t, int64_t) { return true; }),
           .gathers = true}}});
  };
  const std::vector<TestArray> want = Gradients(whole, inputs);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(grads[i].view().dtype, DType::kBF16);
    ExpectNear(grads[i].Read(), want[i].Read(), 1.0 / 128, 1e-5);
  }
}

TEST_F(AttendOpsTest, TermsOfAnyFloatTypeAndTheirGradients) {
  // Given slopes, sinks, table and r of float16 that hold numbers of float16
  Everything wide(11), narrow(11);
  for (size_t i : {6, 7, 8, 10}) {
    narrow.arrays[i] = TestArray(DType::kF16, wide.arrays[i].view().shape);
    narrow.arrays[i].Write(wide.arrays[i].Read());
    wide.arrays[i].Write(narrow.arrays[i].Read());
    narrow.tensors[i] = TensorOf(narrow.arrays[i]);
  }
  const AttendSeqs seqs = SeqsOf(OneTile({0, 5, 8, 2, 1, 7, 4, 3}, Causal));
  const Formula formula = [&](Ops& ops, const std::vector<Tensor>& t) {
    return ops.Attend(t[0], t[1], t[2], {.scale = 0.7}, seqs, TermsOf(t));
  };
  EXPECT_EQ(Loss(formula, wide.tensors), Loss(formula, narrow.tensors));
  const std::vector<TestArray> want = Gradients(formula, wide.tensors);
  const std::vector<TestArray> got = Gradients(formula, narrow.tensors);
  for (size_t i : {6, 7, 8, 10}) {
    EXPECT_EQ(got[i].view().dtype, DType::kF16);
    ExpectNear(got[i].Read(), want[i].Read(), 6e-4, 1e-7);
  }
}

TEST_F(AttendOpsTest, HiddenNumbersAndEmptyRowsWithSinks) {
  // Given a bias of -inf, NaN in key 5, which no query sees, and a row of q that sees no key
  Everything x(5);
  PlainArray k = x.arrays[1].Read(), bias = x.arrays[5].Read();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 3; ++d) k.At({b, h, 5, d}) = NAN;
    }
  }
  for (int64_t h = 0; h < 4; ++h) bias.At({0, h, 0, 5}) = -kInf;
  x.arrays[1].Write(k);
  x.arrays[5].Write(bias);
  const AttendSeqs seqs =
      SeqsOf(OneTile({0, 1, 2, 3, 4, 5}, [](int64_t i, int64_t j) { return i != 2 && j != 0; }));
  BufferPool pool;
  Stream stream(device_, &pool);
  Ops ops(stream, nullptr);
  AttendTensors terms{.bias = x.tensors[5], .sinks = x.tensors[7]};
  const AttendOut out = ops.Attend(x.tensors[0], x.tensors[1], x.tensors[2], {}, seqs, terms);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  const PlainArray values = ReadView(out.out[0]), lse = ReadView(out.lse[0]);
  for (double value : values.values) EXPECT_TRUE(std::isfinite(value));
  EXPECT_EQ(lse.At({1, 3, 2}), x.arrays[7].Read().At({1, 3}));
  EXPECT_EQ(values.At({1, 3, 2, 0}), 0);
  EXPECT_EQ(lse.At({0, 0, 4}), -kInf);  // at and beyond nq, sink or not
}

TEST_F(AttendOpsTest, ColumnMassIsTheSumOfWeights) {
  Everything x(9);
  const AttendSeqs seqs = SeqsOf(OneTile({0, 5, 8, 2, 1, 7, 4, 3}, Causal));
  const AttendParams params{.scale = 0.7};
  BufferPool pool(0, /*poison=*/true);
  Stream stream(device_, &pool);
  Tape tape;
  Ops ops(stream, &tape);
  const AttendTensors terms = TermsOf(x.tensors);
  tape.Watch(x.tensors[0]);
  const AttendOut out = ops.Attend(x.tensors[0], x.tensors[1], x.tensors[2], params, seqs, terms);
  const Work work = stream.work();
  const Tensor mass = ops.ColumnMass(x.tensors[0], x.tensors[1], params, seqs, out, terms);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(mass[0].shape, (Shape{2, 4, 6}));
  EXPECT_EQ(stream.work().flops, work.flops);
  EXPECT_FALSE(tape.IsWatched(mass));
  // Then it equals the output for unit vectors as values: P_ij of key j in column j
  TestArray unit(DType::kF32, {2, 2, 6, 6}), none(DType::kF32, {2, 2, 3, 6});
  PlainArray ones(unit.view().shape);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t j = 0; j < 6; ++j) ones.At({b, h, j, j}) = 1;
    }
  }
  unit.Write(ones);
  none.Write(PlainArray(none.view().shape));
  AttendTensors unit_terms = terms;
  unit_terms.v2 = TensorOf(none);
  const AttendOut weights =
      ops.Attend(x.tensors[0], x.tensors[1], TensorOf(unit), params, seqs, unit_terms);
  const PlainArray P = ReadView(weights.out[0]), got = ReadView(mass[0]);
  ForEachIndex(got.shape, [&](const std::vector<int64_t>& at) {
    double sum = 0;
    for (int64_t i = 0; i < 5; ++i) sum += P.At({at[0], at[1], i, at[2]});
    EXPECT_NEAR(got.At(at), sum, 1e-6);
  });
}

TEST_F(AttendOpsTest, BrokenContractsAreRefused) {
  Everything x;
  const AttendSeqs seqs = SeqsOf(nullptr);
  const Tensor q = x.tensors[0], k = x.tensors[1], v = x.tensors[2];
  const TestArray flat(DType::kF32, {2, 4, 5}), ints(DType::kI32, {2, 4});
  const Tensor rank3 = TensorOf(flat), int32 = TensorOf(ints);
  using Change = std::function<void(AttendTensors&, AttendParams&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"k2 and v2", [&](auto& t, auto&) { t.k2 = x.tensors[3]; }},
      {"q_rel and r", [&](auto& t, auto&) { t.r = x.tensors[10]; }},
      {"bias", [&](auto& t, auto&) { t.bias = rank3; }},
      {"bias", [&](auto& t, auto&) { t.bias = x.tensors[8]; }},
      {"sinks", [&](auto& t, auto&) { t.sinks = int32; }},
      {"alibi_slopes", [&](auto& t, auto&) { t.alibi_slopes = q; }},
      {"v2", [&](auto& t, auto&) { t.k2 = x.tensors[3], t.v2 = v; }},
      {"row_weight", [&](auto& t, auto&) { t.row_weight = rank3; }},
      {"softcap", [&](auto&, auto& p) { p.softcap = -1; }},
      {"sinks",
       [&](auto& t, auto& p) {
         t.sinks = x.tensors[7];
         p.weighting = Weighting::kRelu;
       }},
  };
  for (const auto& [words, change] : changes) {
    BufferPool pool;
    Stream stream(device_, &pool);
    Ops ops(stream, nullptr);
    AttendTensors terms;
    AttendParams params;
    change(terms, params);
    EXPECT_TRUE(ops.Attend(q, k, v, params, seqs, terms).out.empty());
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
    EXPECT_NE(std::string(ops.status().message()).find(words), std::string::npos) << ops.status();
  }
  EXPECT_EQ(device_.launches(), 0);
}

}  // namespace
}  // namespace attnd::testing
