#include "warp.h"

#include <bit>

#include "block.h"
#include "shared.h"

namespace emu {
namespace {

struct BallotArgs {
  bool in;
  unsigned out;
};

void RunBallot(void* const lanes[32], unsigned mask, const Where&) {
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0 && static_cast<BallotArgs*>(lanes[i])->in) votes |= 1u << i;
  }
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) static_cast<BallotArgs*>(lanes[i])->out = votes;
  }
}

struct LdMatrixArgs {
  uint32_t* r;
  const uint16_t* row;
};

template <int kCount, bool kTransposed>
void RunLdMatrix(void* const lanes[32], unsigned, const Where&) {
  const auto lane = [&](int i) -> LdMatrixArgs& { return *static_cast<LdMatrixArgs*>(lanes[i]); };
  for (int m = 0; m < kCount; ++m) {
    unsigned groups = 0;  // of the eight 16-byte bank groups
    for (int i = 0; i < 8; ++i) {
      groups |= 1u << (reinterpret_cast<uintptr_t>(lane(m * 8 + i).row) / 16 % 8);
    }
    self->block->counters.bank_conflicts += 8 - std::popcount(groups);
    for (int i = 0; i < 32; ++i) {
      const int y = i / 4, x = i % 4 * 2;
      const uint32_t low = kTransposed ? lane(m * 8 + x).row[y] : lane(m * 8 + y).row[x];
      const uint32_t high = kTransposed ? lane(m * 8 + x + 1).row[y] : lane(m * 8 + y).row[x + 1];
      lane(i).r[m] = low | high << 16;
    }
  }
  ++self->block->counters.ldmatrix;
}

struct MmaArgs {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

// a[rows][k] b[k][columns], of the whole warp.
template <size_t kDepth>
struct MmaTiles {
  using Quad = float __attribute__((vector_size(16)));
  float a[16][kDepth];
  alignas(16) float b[kDepth][8];

  // Adds the product to the lanes' d.
  void Run(void* const lanes[32]) const {
    for (int row = 0; row < 16; ++row) {
      // Four lanes hold a row, two columns each.
      float* d[4];
      for (int i = 0; i < 4; ++i) {
        d[i] = static_cast<MmaArgs*>(lanes[row % 8 * 4 + i])->d + row / 8 * 2;
      }
      Quad left = {d[0][0], d[0][1], d[1][0], d[1][1]};
      Quad right = {d[2][0], d[2][1], d[3][0], d[3][1]};
      for (size_t k = 0; k < kDepth; ++k) {
        const auto* columns = reinterpret_cast<const Quad*>(b[k]);
        left += a[row][k] * columns[0];
        right += a[row][k] * columns[1];
      }
      for (int i = 0; i < 2; ++i) {
        d[i][0] = left[i * 2];
        d[i][1] = left[i * 2 + 1];
        d[i + 2][0] = right[i * 2];
        d[i + 2][1] = right[i * 2 + 1];
      }
    }
  }
};

template <MmaType kType>
float Decode(uint32_t bits) {
  if constexpr (kType == MmaType::kBf16) return std::bit_cast<float>(bits << 16);
  // Mantissa and exponent in their places, then the exponent's bias.
  float x = std::bit_cast<float>((bits & 0x7fff) << 13) * 0x1p112f;
  if ((bits & 0x7c00) == 0x7c00) x = std::bit_cast<float>(0x7f800000 | (bits & 0x3ff) << 13);
  return (bits & 0x8000) != 0 ? -x : x;
}

template <MmaType kType>
void RunMma16(void* const lanes[32], unsigned, const Where&) {
  MmaTiles<16> tiles;
  for (int i = 0; i < 32; ++i) {
    const MmaArgs& lane = *static_cast<MmaArgs*>(lanes[i]);
    const int g = i / 4, t = i % 4 * 2;
    for (int j = 0; j < 4; ++j) {
      float* pair = &tiles.a[g + j % 2 * 8][t + j / 2 * 8];
      pair[0] = Decode<kType>(lane.a[j] & 0xffff);
      pair[1] = Decode<kType>(lane.a[j] >> 16);
    }
    for (int j = 0; j < 2; ++j) {
      tiles.b[t + j * 8][g] = Decode<kType>(lane.b[j] & 0xffff);
      tiles.b[t + j * 8 + 1][g] = Decode<kType>(lane.b[j] >> 16);
    }
  }
  tiles.Run(lanes);
  Counters& counters = self->block->counters;
  ++(kType == MmaType::kBf16 ? counters.mma_bf16 : counters.mma_f16);
}

float DecodeTf32(uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000); }

void RunMma8(void* const lanes[32], unsigned, const Where&) {
  MmaTiles<8> tiles;
  for (int i = 0; i < 32; ++i) {
    const MmaArgs& lane = *static_cast<MmaArgs*>(lanes[i]);
    const int g = i / 4, t = i % 4;
    for (int j = 0; j < 4; ++j) tiles.a[g + j % 2 * 8][t + j / 2 * 4] = DecodeTf32(lane.a[j]);
    for (int j = 0; j < 2; ++j) tiles.b[t + j * 4][g] = DecodeTf32(lane.b[j]);
  }
  tiles.Run(lanes);
  ++self->block->counters.mma_tf32;
}

}  // namespace

unsigned Ballot(const char* name, unsigned mask, bool vote, const Where& where) {
  BallotArgs args{vote, 0};
  Collective(name, RunBallot, &args, mask, where);
  return args.out;
}

void LdMatrix(uint32_t* r, int count, const void* row, bool transposed, const Where& where) {
  if (self->Lane() < count * 8) {
    CheckShared(row, 16, "ldmatrix", where);
    NoteRead(row, 16);
  }
  LdMatrixArgs args{r, static_cast<const uint16_t*>(row)};
  const Op four = transposed ? RunLdMatrix<4, true> : RunLdMatrix<4, false>;
  const Op two = transposed ? RunLdMatrix<2, true> : RunLdMatrix<2, false>;
  Collective("ldmatrix", count == 4 ? four : two, &args, ~0u, where);
}

void Mma16816(MmaType type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
              const Where& where) {
  MmaArgs args{d, a, {b0, b1}};
  const Op op = type == MmaType::kBf16 ? RunMma16<MmaType::kBf16> : RunMma16<MmaType::kF16>;
  Collective("mma.sync", op, &args, ~0u, where);
}

void Mma1688Tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                 const Where& where) {
  MmaArgs args{d, a, {b0, b1}};
  Collective("mma.sync", RunMma8, &args, ~0u, where);
}

}  // namespace emu
