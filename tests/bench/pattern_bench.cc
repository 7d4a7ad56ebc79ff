// Time and memory of building patterns at a million tokens, and of finding them again. One JSON
// object a line: case, value (ms of this process's CPU, the median of the builds; for one in the
// cache us from the options to it), goal, runs and masks, bytes that the pattern keeps. The goals
// are absolute: a build is short beside the attention that it is for.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/cache.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/shapes/lists.h"
#include "kernels/pattern/shapes/longformer.h"
#include "kernels/pattern/shapes/reformer.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

constexpr int64_t N = int64_t{1} << 20;
constexpr double kWindowGoal = 10;  // ms, for patterns that a few options describe

using Make = std::function<PatternParts()>;

void Report(const std::string& name, double goal_ms, const Make& make) {
  std::vector<double> builds, finds;
  size_t runs = 0, masks = 0;
  int64_t bytes = 0;
  for (int round = 0; round < 7; ++round) {
    runs = masks = 0;
    bytes = 0;
    const double start = ProcessSeconds();
    double counting = 0;
    for (const PatternSource& part : make()) {
      if (part.build == nullptr) continue;
      const Pattern pattern = part.build();
      const double built = ProcessSeconds();
      runs += pattern.by_query.runs.size() + pattern.by_key.runs.size();
      masks += pattern.masks.size();
      bytes += BytesOf(pattern);
      counting += ProcessSeconds() - built;
    }
    builds.push_back(ProcessSeconds() - start - counting);
  }
  PatternCache cache(int64_t{4} << 30);
  for (int round = 0; round < 21; ++round) {
    const double start = ProcessSeconds();
    for (const PatternSource& part : make()) {
      if (part.build != nullptr) cache.Get(part);
    }
    if (round > 0) finds.push_back(ProcessSeconds() - start);
  }
  std::printf(
      "{\"case\":\"plan %s\",\"value\":%.2f,\"unit\":\"ms\",\"goal\":\"<= %.0f\",\"runs\":%zu,"
      "\"masks\":%zu,\"bytes\":%lld}\n",
      name.c_str(), Median(builds) * 1e3, goal_ms, runs, masks, static_cast<long long>(bytes));
  // Patterns of arrays in a request are looked up by the arrays' content.
  const bool by_options = goal_ms <= kWindowGoal;
  std::printf("{\"case\":\"plan %s, cached\",\"value\":%.1f,\"unit\":\"us\"%s}\n", name.c_str(),
              Median(finds) * 1e6, by_options ? ",\"goal\":\"<= 50\"" : "");
  std::fflush(stdout);
}

PatternSeq Causal() { return {.Nq = N, .Nk = N, .lengths = {N, N}, .causal = true}; }
PatternSeq Square() { return {.Nq = N, .Nk = N, .lengths = {N, N}}; }

void Windows() {
  Report("causal", kWindowGoal, [] { return PatternParts{BandSource(N, N, kUnbounded, 0)}; });
  Report("window 256", kWindowGoal, [] { return PatternParts{BandSource(N, N, -255, 0)}; });
  Report("window 4096", kWindowGoal, [] { return PatternParts{BandSource(N, N, -4095, 0)}; });
  for (const int64_t block : {100, 256}) {
    const BlockBand band{.block = block, .look_backward = 1, .causal = true};
    Report("blocks of " + std::to_string(block), kWindowGoal, [&] {
      return PatternParts{BlockBandSource(N, N, band, {N, N})};
    });
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < N; ++i) ids.push_back(static_cast<int32_t>(i / 1000));
  Report("segments of 1000", 100, [&] {
    const PatternSource causal = BandSource(N, N, kUnbounded, 0);
    return PatternParts{WithinSegments(causal, ids, ids)};
  });
}

void Factorised() {
  Report("strided 1024", 50, [] { return StridedParts(Causal(), 1024, Half::kBoth); });
  Report("fixed 128 of 32", 50, [] {
    return PatternParts{FixedSource(Causal(), {.stride = 128, .summary = 32}, Half::kBoth)};
  });
  std::vector<int32_t> globals;
  for (int64_t g = 0; g < 64; ++g) globals.push_back(static_cast<int32_t>(g * (N / 64)));
  for (const int64_t dilation : {1, 4}) {
    Report("longformer 256 dilation " + std::to_string(dilation), 50, [&] {
      return PatternParts{LongformerSource(Square(), {256, dilation}, globals, Half::kLocal),
                          LongformerSource(Square(), {}, globals, Half::kGlobal)};
    });
    Report("longformer 256 dilation " + std::to_string(dilation) + ", in one", 50, [&] {
      return PatternParts{LongformerSource(Square(), {256, dilation}, globals, Half::kBoth)};
    });
  }
  Report("etc 64, 84", 50,
         [] { return PatternParts{EtcSource(Square(), {.ng = 64, .radius = 84}, Half::kBoth)}; });
}

void BlocksAndGrids() {
  for (const int64_t block : {64, 16}) {
    std::vector<int32_t> random(N / block * 3);
    for (size_t s = 0; s < random.size(); ++s) {
      random[s] = static_cast<int32_t>(s * 2654435761u % static_cast<uint64_t>(N / block));
    }
    Report("bigbird " + std::to_string(block), block == 64 ? 50 : 200, [&] {
      return PatternParts{BigBirdSource(Square(), {.block = block, .random = random, .r = 3})};
    });
  }
  std::vector<int32_t> perm;
  for (int32_t t = 0; t < 16; ++t) perm.push_back((t + 1) % 16);
  Report("blockwise 16", 50, [&] { return PatternParts{BlockwiseSource(Square(), perm)}; });
  const std::vector<int64_t> grid = {1024, 1024};
  Report("axial rows", 50, [&] { return PatternParts{AxialSource(Causal(), grid, 0)}; });
  Report("axial cross", 100, [&] { return AxialCross(Causal(), grid); });
  Report("image 1024x1024", 200,
         [] { return PatternParts{ImageLocal2d(Causal(), {.height = 1024, .width = 1024})}; });
}

int Main() {
  Windows();
  Factorised();
  BlocksAndGrids();
  return 0;
}

}  // namespace
}  // namespace attnd

int main() { return attnd::Main(); }
