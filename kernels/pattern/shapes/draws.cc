#include "kernels/pattern/shapes/draws.h"

#include <algorithm>

#include "kernels/core/random.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

// Draws of different methods differ for equal seeds.
constexpr uint64_t kKeysTag = 1, kBlocksTag = 2;

}  // namespace

std::vector<int32_t> DrawnKeys(const PatternSeq& seq, int64_t R, uint64_t seed, int64_t head) {
  const auto [nq, nk] = seq.lengths;
  std::vector<int32_t> keys(static_cast<size_t>(nq * R), -1);
  Sampler sampler(nk);
  for (int64_t i = 0; i < nq; ++i) {
    if (i % kTile == 0 && CheckPoint()) break;
    const int64_t p = i + seq.offset;
    const int64_t candidates = seq.causal ? std::clamp<int64_t>(p + 1, 0, nk) : nk;
    const auto drawn = sampler.Draw(candidates, R, seed, kKeysTag, static_cast<uint64_t>(head),
                                    static_cast<uint64_t>(p));
    std::copy(drawn.begin(), drawn.end(), keys.begin() + i * R);
  }
  return keys;
}

std::vector<int32_t> DrawnBlocks(const BigBird& bird, const BlockDraw& draw, int64_t head) {
  const int64_t nb = bird.Blocks(draw.N), rows = bird.InnerRows(draw.N);
  std::vector<int32_t> blocks(static_cast<size_t>(rows * bird.r), -1);
  const int64_t begun = draw.prefix / bird.block + (draw.prefix % bird.block != 0 ? 1 : 0);
  const int64_t end = std::min(nb - std::min(bird.right, nb), begun);
  Sampler sampler(nb);
  for (int64_t row = 0; row < rows && !CheckPoint(); ++row) {
    const int64_t t = row + bird.left, window = t - bird.half_window;
    const int64_t behind = std::max(t + bird.half_window + 1, bird.left);
    const int64_t before = std::max<int64_t>(std::min(window, end) - bird.left, 0);
    const int64_t candidates = before + std::max<int64_t>(end - behind, 0);
    int32_t* to = blocks.data() + row * bird.r;
    for (const int32_t place :
         sampler.Draw(candidates, bird.r, draw.seed, kBlocksTag, static_cast<uint64_t>(head),
                      static_cast<uint64_t>(t))) {
      *to++ = static_cast<int32_t>(place < before ? bird.left + place : behind + place - before);
    }
  }
  return blocks;
}

}  // namespace attnd
