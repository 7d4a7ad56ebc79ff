// attend of all keys, causal or not, and matmul.
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "tests/cpu/attend_case.h"
#include "tests/cuda/costs/table.h"
#include "tests/cuda/emulator/options.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

// Of 64 heads a block takes two tiles of queries.
void Attend(DType dtype, int64_t D, bool causal, int64_t heads, const Table& table) {
  constexpr int64_t N = 512;
  const AttendCase c({.H = heads,
                      .Hkv = heads,
                      .Nq = N,
                      .Nk = N,
                      .D = D,
                      .Dv = D,
                      .dtype = dtype,
                      .mask = causal ? MaskKind::kCausal : MaskKind::kNone},
                     1);
  const double pairs = static_cast<double>(heads * (causal ? N * (N + 1) / 2 : N * N));
  const auto width = static_cast<double>(D);
  const auto array = static_cast<double>(heads * N * D * SizeOf(dtype));
  const std::string shape = " " + NameOf(dtype) + ", D " + std::to_string(D) +
                            (causal ? ", causal" : ", dense") +
                            (heads == 1 ? "" : ", " + std::to_string(heads) + " heads");
  const AttendArgs forward{.params = {.scale = c.scale}, .problems = {c.Forward()}};
  table.Row("`attend`" + shape, {4 * width * pairs, UnitOf(dtype), 4 * array, array}, forward);
  if (heads > 1) return;
  const AttendGradArgs backward{.params = {.scale = c.scale}, .problems = {c.Backward()}};
  table.Row("its gradient" + shape, {10 * width * pairs, UnitOf(dtype), 8 * array, 3 * array},
            backward);
}

void MatMul(DType dtype, int64_t M, int64_t N, int64_t K, const Table& table) {
  const TestArray a = TestArray::Random(1, dtype, {M, K}), b = TestArray::Random(2, dtype, {K, N});
  const TestArray out(dtype, {M, N});
  const MatMulArgs args{.problems = {{a.view(), b.view(), {}, {}, out.view()}}};
  table.Row("`matmul` " + NameOf(dtype) + ", " + std::to_string(M) + " x " + std::to_string(N) +
                " x " + std::to_string(K),
            {2.0 * static_cast<double>(M * N * K), UnitOf(dtype),
             static_cast<double>((M * K + K * N + M * N) * SizeOf(dtype)),
             static_cast<double>(M * N * SizeOf(dtype))},
            args);
}

// What `keys` keys take of six tiles of queries of each head: fewer rows have exact weights.
constexpr int64_t kTiles = 6;
emu::Counters Dense(int64_t D, int64_t heads, int64_t keys) {
  const AttendCase c({.H = heads,
                      .Hkv = heads,
                      .Nq = kTiles * 64,
                      .Nk = keys,
                      .D = D,
                      .Dv = D,
                      .dtype = DType::kBF16},
                     1);
  Device& device = CpuOf("cuda", 1);
  const AttendArgs args{.params = {.scale = c.scale}, .problems = {c.Forward()}};
  emu::TakeCounters();
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
  return emu::TakeCounters();
}

// Of one tile of keys, by the difference of two problems.
std::string TileOf(int64_t D, int64_t heads, int64_t tiles_a_block) {
  const int64_t blocks = heads * kTiles / tiles_a_block;
  const emu::Counters one = Dense(D, heads, 320), two = Dense(D, heads, 384);
  const auto of_warp = [&](int64_t a, int64_t b) { return std::to_string((b - a) / blocks / 4); };
  return "{\"products\": " + of_warp(one.mma_bf16, two.mma_bf16) +
         ", \"ldmatrix\": " + of_warp(one.ldmatrix, two.ldmatrix) + ", \"copies\": " +
         // Of 16 bytes, by 128 threads.
         std::to_string((two.async_bytes - one.async_bytes) / blocks / 16 / 128) +
         ", \"barriers\": " + std::to_string((two.barriers - one.barriers) / blocks) + "}";
}

}  // namespace

void PrintTile() {
  std::string text;
  for (const int64_t D : {64, 128}) {
    // So many heads that a block takes two tiles.
    for (const auto& [tiles, heads] : {std::pair<int64_t, int64_t>{1, 1}, {2, 86}}) {
      text += (text.empty() ? "{\"" : ", \"") + std::to_string(D) + " x " + std::to_string(tiles) +
              "\": " + TileOf(D, heads, tiles);
    }
  }
  std::printf("%s}\n", text.c_str());
}

void PrintAttend(const Table& table) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t D : {64, 128}) {
      for (const bool causal : {false, true}) {
        Attend(dtype, D, causal, 1, table);
        if (dtype == DType::kBF16 && !causal) Attend(dtype, D, causal, 64, table);
      }
    }
  }
  MatMul(DType::kBF16, 512, 512, 512, table);
  MatMul(DType::kF32, 512, 512, 256, table);
}

}  // namespace attnd::testing
