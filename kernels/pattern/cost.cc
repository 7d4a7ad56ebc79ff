#include "kernels/pattern/cost.h"

#include <algorithm>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"

namespace attnd {

namespace {

// The most bytes of stored terms; `bytes`: of one element of a tile.
int64_t TermBytes(int64_t Nq, int64_t Nk, int64_t bytes) {
  if (bytes == 0) return 0;
  constexpr int64_t kOthers = 512;  // of the hash tables
  const int64_t tiles = std::min(Tiles(Nq) * Tiles(Nk), StoredLimits().terms);
  return (tiles + 1) * (kTile * kTile * bytes + kOthers);
}

}  // namespace

HostCost CostOf(int64_t Nq, int64_t Nk, const PatternCounts& counts) {
  const StoredLimits limits;
  const int64_t rows = Tiles(Nq), columns = Tiles(Nk), all = rows * columns;
  const int64_t runs_of_row = std::min({counts.runs_of_row, limits.runs, columns}) + 1;
  const int64_t runs = std::min(rows * runs_of_row, all);
  const int64_t transposed = std::min(2 * runs_of_row * (rows + columns), all);
  const int64_t masks = std::min({counts.masks, limits.masks * rows + limits.shapes, runs});
  // A vector that grows holds its elements up to three times for a moment.
  constexpr int64_t kRunBytes = 3 * 24 + sizeof(Run), kMaskBytes = 3 * sizeof(TileMask) + 128;
  constexpr int64_t kTileBytes = 64;  // for each row and column of tiles: where its runs begin
  const int64_t slots = counts.slot_bytes * (Nq + Nk);
  const int64_t bytes = runs * kRunBytes + transposed * static_cast<int64_t>(sizeof(Run)) +
                        masks * kMaskBytes + (rows + columns) * kTileBytes + slots +
                        TermBytes(Nq, Nk, counts.term_bytes);
  // Measured by tests/bench/pattern_bench.
  constexpr double kRunSeconds = 6e-8, kMaskSeconds = 2e-6, kByteSeconds = 4e-10;
  // Where data decide, every row of tiles examines all columns.
  const double looks = counts.slot_bytes > 0 ? static_cast<double>(all) : 0;
  constexpr double kLookSeconds = 4e-9;
  const double seconds = looks * kLookSeconds + static_cast<double>(runs) * kRunSeconds +
                         static_cast<double>(std::min(masks, 4 * rows)) * kMaskSeconds +
                         static_cast<double>(slots) * kByteSeconds;
  constexpr int64_t kLeastBytes = 1024;  // of the pattern itself
  return {bytes + kLeastBytes, seconds};
}

}  // namespace attnd
