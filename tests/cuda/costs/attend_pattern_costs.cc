// attend over lists and blocks of keys, of few queries, and with an added bias.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/attend_case.h"
#include "tests/cuda/costs/table.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

AttendArgs ForwardOf(const AttendCase& c) {
  return {.params = {.scale = c.scale}, .problems = {c.Forward()}};
}
AttendGradArgs GradientOf(const AttendCase& c) {
  return {.params = {.scale = c.scale}, .problems = {c.Backward()}};
}
AttendSizes Sizes(DType dtype, int64_t heads, int64_t Nq, int64_t Nk, int64_t D) {
  return {.H = heads, .Hkv = heads, .Nq = Nq, .Nk = Nk, .D = D, .Dv = D, .dtype = dtype};
}

// Each of N queries sees `count` of N keys.
Pattern RandomKeys(int64_t N, int64_t count) {
  Pattern pattern{.Nq = N, .Nk = N};
  std::minstd_rand random(1);
  std::vector<std::vector<int32_t>> queries(static_cast<size_t>(N));
  std::vector<int32_t> all(static_cast<size_t>(N));
  std::iota(all.begin(), all.end(), 0);
  const auto append = [](auto begin, auto end, PairList* list) {
    list->columns.insert(list->columns.end(), begin, end);
    list->begin.push_back(static_cast<int64_t>(list->columns.size()));
  };
  pattern.keys_of.begin = pattern.queries_of.begin = {0};
  for (int32_t i = 0; i < N; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    std::sort(all.begin(), all.begin() + count);
    for (int64_t n = 0; n < count; ++n) queries[static_cast<size_t>(all[n])].push_back(i);
    append(all.begin(), all.begin() + count, &pattern.keys_of);
  }
  for (const auto& listed : queries) append(listed.begin(), listed.end(), &pattern.queries_of);
  pattern.visible_pairs = N * count;
  return pattern;
}

// Least: rows of different queries have no product in common, so that none is due of tensor cores.
// Every row of k and v is in some list; the list itself is read as well, and its transpose by the
// gradient.
void Listed(DType dtype, int64_t D, const Table& table) {
  constexpr int64_t N = 1024, kCount = 64;
  AttendCase c(Sizes(dtype, 1, N, N, D), 1);
  AttendSeq& seq = c.seqs[0];
  seq.pattern = std::make_shared<Pattern>(RandomKeys(N, kCount));
  seq.is_listed = true;
  seq.visible_pairs = N * kCount;
  const auto pairs = static_cast<double>(N * kCount), width = static_cast<double>(D);
  const auto array = static_cast<double>(N * D * SizeOf(dtype)), list = 4 * pairs + 8.0 * (N + 1);
  const std::string shape =
      " " + NameOf(dtype) + ", D " + std::to_string(D) + ", 64 listed of 1024 keys";
  table.Row("`attend`" + shape, {4 * width * pairs, Unit::kScalar, 4 * array + list, array},
            ForwardOf(c));
  table.Row("its gradient" + shape,
            {10 * width * pairs, Unit::kScalar, 8 * array + 2 * list, 3 * array}, GradientOf(c));
}

// So few queries that the keys of a head are split over blocks; a second kernel merges the parts.
// Least: keys and values, once for all query heads that share them.
void FewQueries(int64_t heads, int64_t kv_heads, int64_t queries, const Table& table) {
  constexpr int64_t kKeys = 4096, D = 128;
  AttendSizes sizes = Sizes(DType::kBF16, heads, queries, kKeys, D);
  sizes.Hkv = kv_heads;
  AttendCase c(sizes, 1);
  // What is not counted is not split.
  c.seqs[0].visible_tiles = static_cast<double>((queries + kTile - 1) / kTile * kKeys / kTile);
  const auto pairs = static_cast<double>(heads * queries * kKeys);
  const auto rows = static_cast<double>(2 * D * SizeOf(DType::kBF16));  // of two arrays
  const double out = rows / 2 * static_cast<double>(heads * queries);
  table.Row(
      "`attend` bf16, D 128, " + std::to_string(queries) + " x 4096, " + std::to_string(heads) +
          " heads" + (heads == kv_heads ? "" : " of " + std::to_string(kv_heads) + " key heads"),
      {4.0 * D * pairs, Unit::kTensor16, 2 * out + rows * kv_heads * kKeys, out}, ForwardOf(c));
}

// `repeats`: two sequences share the bias of one head; else two heads have one each. Least: the
// bias, and its gradient, once.
void Biased(DType dtype, bool repeats, const Table& table) {
  constexpr int64_t N = 512, D = 64;
  AttendSizes sizes = Sizes(dtype, repeats ? 1 : 2, N, N, D);
  if (repeats) sizes.B = 2;
  const AttendCase c(sizes, 1);
  const Shape whole = {sizes.B, sizes.H, N, N}, shape = {1, sizes.H, N, N};
  const TestArray bias = TestArray::Random(1, dtype, shape), gradient(dtype, shape);
  AttendArgs forward = ForwardOf(c);
  View& view = forward.problems[0].terms.bias = bias.view();
  view.shape = whole;
  if (repeats) view.stride[0] = 0;
  AttendGradArgs backward = GradientOf(c);
  backward.problems[0].forward.terms.bias = view;
  backward.problems[0].dterms.bias = gradient.view();
  const double pairs = 2.0 * N * N;
  const auto array = static_cast<double>(2 * N * D * SizeOf(dtype));
  const auto term = static_cast<double>(shape.size() * SizeOf(dtype));
  const std::string name = " " + NameOf(dtype) + ", D 64, " +
                           (repeats ? "a bias for 2 sequences" : "a bias for each of 2 heads");
  table.Row("`attend`" + name, {4 * D * pairs, UnitOf(dtype), 4 * array + term, array}, forward);
  table.Row("its gradient" + name,
            {10 * D * pairs, UnitOf(dtype), 8 * array + 2 * term, 3 * array + term}, backward);
}

// About a tenth of all tiles of 64 x 64, in full. As one of many heads: of few ones, keys would be
// split. Relative to dense attention of as many queries, whose time is that of N 512 and of N 1024
// continued: a tile of queries takes some time, and as much again for each tile of keys.
void Blocks(int64_t D, const Table& table) {
  constexpr int64_t N = 4096, kTiles = N / kTile;
  std::minstd_rand random(1);
  std::vector<char> sees(kTiles * kTiles);
  for (char& tile : sees) tile = random() % 10 == 0 ? 1 : 0;
  const auto tiles = static_cast<double>(std::accumulate(sees.begin(), sees.end(), 0));
  AttendSizes sizes = Sizes(DType::kBF16, 1, N, N, D);
  sizes.mask = MaskKind::kGiven;
  sizes.sees = [&](int64_t i, int64_t j) {
    return sees[static_cast<size_t>(i / kTile * kTiles + j / kTile)] != 0;
  };
  const double width = static_cast<double>(D), density = tiles / (kTiles * kTiles);
  const auto least = [width](int64_t n, double pairs) {
    const double array = static_cast<double>(n) * width * SizeOf(DType::kBF16);
    return std::pair<Least, Least>{{4 * width * pairs, Unit::kTensor16, 4 * array, array},
                                   {10 * width * pairs, Unit::kTensor16, 8 * array, 3 * array}};
  };
  // Seconds of a tile of queries.
  const auto dense = [&](int64_t n) {
    const AttendCase c(Sizes(DType::kBF16, 1, n, n, D), 1);
    const auto [forward, backward] = least(n, static_cast<double>(n * n));
    const double rows = static_cast<double>(n) / kTile;
    return std::pair<double, double>{table.Seconds(forward, ForwardOf(c)) / rows,
                                     table.Seconds(backward, GradientOf(c)) / rows};
  };
  const auto small = dense(512), large = dense(1024);
  const auto expected = [&](double from, double to) {
    return density * kTiles * (from + (to - from) * (kTiles - 8) / 8);
  };
  const AttendCase c(sizes, 1);
  const auto [forward, backward] = least(N, tiles * kTile * kTile);
  const std::string shape = " bf16, D " + std::to_string(D) + ", " +
                            std::to_string(static_cast<int>(tiles)) + " of 4096 tiles";
  table.Row("`attend`" + shape, forward, ForwardOf(c), expected(small.first, large.first));
  table.Row("its gradient" + shape, backward, GradientOf(c), expected(small.second, large.second));
}

}  // namespace

void PrintAttendPatterns(const Table& table) {
  Blocks(64, table);
  for (const DType dtype : {DType::kBF16, DType::kF32}) Listed(dtype, 64, table);
  FewQueries(8, 8, 1, table);
  FewQueries(8, 2, 1, table);
  FewQueries(2, 2, 64, table);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const bool repeats : {false, true}) Biased(dtype, repeats, table);
  }
}

}  // namespace attnd::testing
