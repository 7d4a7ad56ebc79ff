#include "tests/cpu/attend_grad_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/cpu/attend_case.h"
#include "tests/plain/random_lists.h"

namespace attnd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const char* const kGradients[] = {"dq",      "dk",     "dv",     "dk2",    "dv2", "dbias",
                                  "dslopes", "dsinks", "dtable", "dq_rel", "dr"};

int64_t Tiles(int64_t n) { return (n + kTile - 1) / kTile; }

// Every visible tile is a run of its own, with random mask and terms.
Pattern RandomTiles(std::mt19937* random, int64_t Nq, int64_t Nk, bool has_constants,
                    int64_t labels) {
  Pattern pattern;
  pattern.Nq = Nq;
  pattern.Nk = Nk;
  for (int n = 0; n < 3; ++n) {
    TileTerms terms;
    for (int64_t i = 0; i < kTile * kTile; ++i) {
      const auto number = static_cast<int64_t>((*random)());
      if (has_constants) terms.bias.push_back(static_cast<float>(number % 100) / 50 - 1);
      if (labels == 0) continue;
      const int64_t label = number / 100 % (labels + 1);
      terms.labels.push_back(static_cast<uint16_t>(label == labels ? TileTerms::kNoLabel : label));
    }
    pattern.terms.push_back(terms);
  }
  const bool has_terms = has_constants || labels > 0;
  std::vector<Run> tiles(Tiles(Nq) * Tiles(Nk), Run{.count = 0});
  for (int64_t n = 0; n < Tiles(Nq) * Tiles(Nk); ++n) {
    const unsigned kind = (*random)() % 4;
    if (kind == 0) continue;
    tiles[n].count = 1;
    if (has_terms && (*random)() % 4 != 0) tiles[n].terms = static_cast<int32_t>((*random)() % 3);
    if (kind == 1) continue;
    tiles[n].mask = static_cast<int32_t>(pattern.masks.size());
    TileMask& mask = pattern.masks.emplace_back();
    for (uint64_t& word : mask) word = uint64_t{(*random)()} << 32 | (*random)();
    // Some show a triangle only.
    const bool is_triangle = (*random)() % 2 != 0;
    for (int64_t key = 0; is_triangle && key < kTile; ++key) mask[key] &= ~uint64_t{0} << key;
  }
  const auto rows = [&](int64_t count, int64_t others, bool by_key) {
    TileRows result;
    result.begin.push_back(0);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t other = 0; other < others; ++other) {
        Run run = by_key ? tiles[other * count + row] : tiles[row * others + other];
        run.first = static_cast<int32_t>(other);
        if (run.count > 0) result.runs.push_back(run);
      }
      result.begin.push_back(static_cast<int64_t>(result.runs.size()));
    }
    return result;
  };
  pattern.by_query = rows(Tiles(Nq), Tiles(Nk), false);
  pattern.by_key = rows(Tiles(Nk), Tiles(Nq), true);
  return pattern;
}

}  // namespace

GradCase::GradCase(const GradSizes& s, unsigned seed) : sizes(s), seed_(seed) {
  for (int64_t b = 0; b < s.B; ++b) AddRow(b);
  AddTensors();
  PlainAttendForward(Params(), Problem().forward);
}

void GradCase::AddRow(int64_t b) {
  std::mt19937 random(seed_ * 31 + static_cast<unsigned>(b));
  AttendSeq seq;
  seq.nq = sizes.padded ? std::max<int64_t>(sizes.Nq - 3 - 20 * b, 0) : sizes.Nq;
  seq.nk = sizes.padded ? std::max<int64_t>(sizes.Nk - 2 - 30 * b, 0) : sizes.Nk;
  seq.offset = Has("relative") ? std::max<int64_t>(seq.nk - seq.nq, 0) : 7 * b - 5;
  seq.offset += sizes.offset;
  const bool once = sizes.slots == Slots::kOnce;
  seq.gathers = once || sizes.slots == Slots::kGather || sizes.slots == Slots::kByHead;
  seq.is_listed = sizes.slots == Slots::kListed;
  const auto pattern = [&] {
    if (seq.is_listed) {
      return std::make_shared<const Pattern>(
          RandomLists(&random, sizes.Nq, sizes.Nk, seq.nq, seq.nk, sizes.listed));
    }
    std::vector<int32_t> queries, keys;
    for (int32_t i = 0; seq.gathers && i < seq.nq; ++i) {
      if (random() % 8 != 0) queries.push_back(i);
      if (random() % 16 == 0) queries.push_back(-1);
    }
    std::shuffle(queries.begin(), queries.end(), random);
    for (int64_t n = 0; seq.gathers && n < seq.nk + sizes.Nk2 + 20; ++n) {
      const auto drawn = static_cast<int64_t>(random() % (seq.nk + sizes.Nk2 + 1)) - 1;
      const auto row = static_cast<int32_t>(drawn < seq.nk ? drawn : drawn - seq.nk + sizes.Nk);
      const bool stands = std::find(keys.begin(), keys.end(), row) != keys.end();
      keys.push_back(once && stands ? -1 : row);
    }
    const int64_t Nq = seq.gathers ? static_cast<int64_t>(queries.size()) : sizes.Nq;
    const int64_t Nk = seq.gathers ? static_cast<int64_t>(keys.size()) : sizes.Nk;
    Pattern made = RandomTiles(&random, Nq, Nk, Has("constants"), Has("labels") ? sizes.V : 0);
    made.query_rows = queries;
    made.key_rows = keys;
    for (int64_t n = 0; Has("constants") && n < Nk; ++n) {
      made.key_bias.push_back(static_cast<float>(random() % 100) / 50 - 1);
    }
    return std::make_shared<const Pattern>(std::move(made));
  };
  if (sizes.slots == Slots::kByHead || seq.is_listed) {
    for (int64_t h = 0; h < sizes.H; ++h) {
      seq.head_patterns.push_back(pattern());
      seq.longest_list = std::max(seq.longest_list, LongestList(*seq.head_patterns.back()));
    }
  } else if (sizes.slots != Slots::kNone) {
    seq.pattern = pattern();
  }
  for (int64_t h = 0; h < sizes.H; ++h) {
    seqs.push_back(seq);
    AttendProblem problem = {.q = DenseView(nullptr, DType::kF32, {sizes.B, 1, sizes.Nq, 1}),
                             .seqs = seqs};
    for (const auto& seen : SeenKeys(problem, b, h)) {
      seq.visible_pairs += static_cast<double>(seen.size()) / static_cast<double>(sizes.H);
    }
    seqs.pop_back();
  }
  seq.visible_tiles = static_cast<double>(Tiles(seq.nq) * Tiles(seq.nk));
  seqs.push_back(seq);
}

void GradCase::AddTerm(const std::string& name, DType dtype, Shape shape, double low, double high) {
  const char letters[] = "bhqk";
  for (int i = 0; i < shape.rank; ++i) {
    if ((i < 2 || name == "bias") && Repeats(letters[i])) shape.dims[i] = 1;
  }
  arrays_[name] = TestArray::Random(seed_ * 101 + static_cast<unsigned>(arrays_.size()), dtype,
                                    shape, sizes.memory, low, high);
  arrays_["d" + name] = TestArray(sizes.slots >= Slots::kGather ? DType::kF32 : dtype, shape);
}

void GradCase::AddTensors() {
  const GradSizes& s = sizes;
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape, int pad) {
    TestArray array = TestArray::Random(seed_ * 101 + static_cast<unsigned>(arrays_.size()), dtype,
                                        shape, s.memory, -1, 1);
    PlainArray values = array.Read();
    ForEachIndex(shape, [&](const std::vector<int64_t>& at) {
      const AttendSeq& seq = seqs[at[0]];
      if (pad != 0 && at[2] >= (pad == 1 ? seq.nq : seq.nk)) values.At(at) = std::nan("");
    });
    array.Write(values);
    arrays_[name] = array;
  };
  add("q", s.q, {s.B, s.H, s.Nq, s.D}, 1);
  add("k", s.k, {s.B, s.Hkv, s.Nk, s.D}, 2);
  add("v", s.v, {s.B, s.Hkv, s.Nk, s.Dv}, 2);
  add("dout", s.out, {s.B, s.H, s.Nq, s.Dv}, 1);
  arrays_["out"] = TestArray(s.out, {s.B, s.H, s.Nq, s.Dv}, s.memory);
  if (s.weighting == Weighting::kSoftmax) {
    add("dlse", DType::kF32, {s.B, s.H, s.Nq}, 1);
    for (const char* name : {"lse", "lse_low"}) {
      arrays_[name] = TestArray(DType::kF32, {s.B, s.H, s.Nq});
    }
  }
  for (const char* name : {"q", "k", "v"}) {
    const View& view = arrays_[name].view();
    arrays_[std::string("d") + name] = TestArray(view.dtype, view.shape, s.memory);
  }
  if (s.Nk2 > 0) {
    AddTerm("k2", s.k, {s.B, s.Hkv, s.Nk2, s.D}, -1, 1);
    AddTerm("v2", s.v, {s.B, s.Hkv, s.Nk2, s.Dv}, -1, 1);
  }
  if (Has("bias")) {
    AddTerm("bias", s.k, {s.B, s.H, s.Nq, s.Nk}, -1, 1);
    PlainArray values = arrays_["bias"].Read();
    std::mt19937 random(seed_);
    for (double& x : values.values) {
      if (std::uniform_real_distribution<double>()(random) < s.hidden_bias) x = -kInf;
    }
    arrays_["bias"].Write(values);
  }
  if (Has("slopes")) AddTerm("slopes", DType::kF32, {s.B, s.H}, 0, s.slope);
  if (Has("sinks")) AddTerm("sinks", DType::kF32, {s.B, s.H}, -1, 3);
  if (Has("table")) AddTerm("table", DType::kF32, {s.B, s.H, s.Nq, s.V}, -1, 1);
  if (Has("relative")) {
    AddTerm("q_rel", s.q, {s.B, s.H, s.Nq, s.D}, -1, 1);
    AddTerm("r", s.k, {s.B, s.H, s.L, s.D}, -1, 1);
  }
  if (Has("row_weight")) AddTerm("row_weight", DType::kF32, {s.B, s.H, s.Nq}, 0, 1);
}

View GradCase::Whole(const std::string& name, const Shape& shape) const {
  if (!arrays_.contains(name)) return {};
  View view = arrays_.at(name).view();
  for (int i = 0; i < shape.rank; ++i) {
    if (view.shape[i] == 1 && shape[i] != 1) view.stride[i] = 0;
  }
  view.shape = shape;
  return view;
}

View GradCase::Given(const std::string& name) const {
  return arrays_.contains(name) ? arrays_.at(name).view() : View();
}

AttendParams GradCase::Params() const {
  return {.scale = sizes.stretch / std::sqrt(static_cast<double>(sizes.D)),
          .softcap = Has("cap") ? 0.7 : 0,
          .weighting = sizes.weighting,
          .cap_table = !Has("late")};
}

AttendGradProblem GradCase::Problem() const {
  const GradSizes& s = sizes;
  AttendProblem f = {.q = Given("q"),
                     .k = Given("k"),
                     .v = Given("v"),
                     .out = Given("out"),
                     .lse = Given("lse"),
                     .lse_low = Given("lse_low"),
                     .seqs = seqs};
  f.terms = {.k2 = Whole("k2", {s.B, s.Hkv, s.Nk2, s.D}),
             .v2 = Whole("v2", {s.B, s.Hkv, s.Nk2, s.Dv}),
             .bias = Whole("bias", {s.B, s.H, s.Nq, s.Nk}),
             .alibi_slopes = Whole("slopes", {s.B, s.H}),
             .sinks = Whole("sinks", {s.B, s.H}),
             .table = Whole("table", {s.B, s.H, s.Nq, s.V}),
             .q_rel = Whole("q_rel", {s.B, s.H, s.Nq, s.D}),
             .r = Whole("r", {s.B, s.H, s.L, s.D}),
             .row_weight = Whole("row_weight", {s.B, s.H, s.Nq})};
  AttendGradProblem p = {f, Given("dout"), Given("dlse"), Given("dq"), Given("dk"), Given("dv")};
  p.dterms = {Given("dk2"),    Given("dv2"),    Given("dbias"),  Given("dslopes"),
              Given("dsinks"), Given("dtable"), Given("dq_rel"), Given("dr")};
  return p;
}

void GradCase::ExpectGradients(double weight_unit) const {
  const auto truth = PlainAttendGrad<double>(Params(), Problem());
  const auto plain = PlainAttendGrad<float>(Params(), Problem());
  const auto list = [](const PlainAttendGradients& g) {
    return std::vector<const PlainGradient*>{&g.dq,     &g.dk,     &g.dv,      &g.dk2,
                                             &g.dv2,    &g.dbias,  &g.dslopes, &g.dsinks,
                                             &g.dtable, &g.dq_rel, &g.dr};
  };
  for (size_t n = 0; n < std::size(kGradients); ++n) {
    if (!arrays_.contains(kGradients[n])) continue;
    SCOPED_TRACE(kGradients[n]);
    const TestArray& ours = arrays_.at(kGradients[n]);
    PlainArray rounded = list(plain)[n]->values;
    for (double& x : rounded.values) x = RoundTo(ours.view().dtype, static_cast<float>(x));
    // Sums of terms that nearly cancel: some units in the last place of the terms.
    ExpectNoWorse(ours.Read(), rounded, list(truth)[n]->values,
                  (1e-6 + weight_unit) * list(truth)[n]->size);
  }
  for (const auto& [name, array] : arrays_) EXPECT_TRUE(array.GuardsIntact()) << name;
}

std::vector<std::byte> GradCase::Gradients() const {
  std::vector<std::byte> all;
  for (const char* name : kGradients) {
    if (!arrays_.contains(name)) continue;
    const std::vector<std::byte> bytes = arrays_.at(name).Bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

void RunAttendGrad(Device& device, const AttendParams& params,
                   const std::vector<AttendGradProblem>& problems) {
  std::vector<AttendSeq> all;
  for (const AttendGradProblem& p : problems) {
    all.insert(all.end(), p.forward.seqs.begin(), p.forward.seqs.end());
  }
  CountBytes(&all);
  const auto run = [&](Stream& stream) {
    std::vector<AttendGradProblem> given = problems;
    std::vector<std::vector<AttendSeq>> seqs;
    for (AttendGradProblem& p : given) {
      // As on a dry stream: counts and shapes.
      if (!stream.is_dry()) continue;
      seqs.emplace_back(p.forward.seqs.begin(), p.forward.seqs.end());
      CountBytes(&seqs.back());
      for (AttendSeq& seq : seqs.back()) {
        seq.pattern = nullptr;
        seq.head_patterns.clear();
      }
      p.forward.seqs = seqs.back();
      AttendTerms& t = p.forward.terms;
      AttendTermGrads& d = p.dterms;
      for (View* view : {&p.forward.q,
                         &p.forward.k,
                         &p.forward.v,
                         &p.forward.out,
                         &p.forward.lse,
                         &p.forward.lse_low,
                         &p.dout,
                         &p.dlse,
                         &p.dq,
                         &p.dk,
                         &p.dv,
                         &t.k2,
                         &t.v2,
                         &t.bias,
                         &t.alibi_slopes,
                         &t.sinks,
                         &t.table,
                         &t.q_rel,
                         &t.r,
                         &t.row_weight,
                         &d.k2,
                         &d.v2,
                         &d.bias,
                         &d.alibi_slopes,
                         &d.sinks,
                         &d.table,
                         &d.q_rel,
                         &d.r}) {
        view->data = nullptr;
      }
    }
    return device.Run(stream, AttendGradArgs{.params = params, .problems = given});
  };
  // Which keys lists have a plan does not know either.
  const bool is_listed = std::ranges::any_of(all, &AttendSeq::is_listed);
  RunOn(device, run, is_listed || StoresTiles(device, all) ? Planned::kAtLeast : Planned::kExactly);
}

}  // namespace attnd::testing
