#include "kernels/pattern/base/window.h"

#include <algorithm>
#include <cmath>

#include "kernels/pattern/base/tiles.h"

namespace attnd {

// Steps inside [0, n) form an arithmetic series; the first and the last may be cut.
double SteppedSum(int64_t n, int64_t offset, int64_t W, int64_t shift, int64_t limit) {
  if (n <= 0) return 0;
  const auto value = [&](int64_t step) {
    return static_cast<double>(std::clamp<int64_t>(W * step + shift, 0, limit));
  };
  const int64_t first = FloorDiv(offset, W), last = FloorDiv(offset + n - 1, W);
  if (first == last) return n * value(first);
  const int64_t head = (first + 1) * W - offset, tail = offset + n - last * W;
  double sum = head * value(first) + tail * value(last);
  // Whole steps first + 1 .. last - 1: zero below `rise`, limit from `top` on.
  const int64_t rise = std::clamp(FloorDiv(-shift, W) + 1, first + 1, last);
  const int64_t top = std::clamp(FloorDiv(limit - shift, W) + 1, rise, last);
  const double count = static_cast<double>(top - rise);
  sum += W * (count * shift + W * count * (rise + top - 1) / 2);
  sum += static_cast<double>(W) * (last - top) * limit;
  return sum;
}

Window Canonical(int64_t Nq, int64_t Nk, Window w) {
  w.block = std::min(w.block, kFar);
  w.before = std::clamp(w.before, -kFar, kFar);
  w.after = std::clamp(w.after, -kFar, kFar);
  if (w.causal) w.after = std::min<int64_t>(w.after, 0);
  if (w.block == 1) {
    // p - before <= j <= p + after: both bounds absorb the offset.
    w.before = std::clamp(w.before - w.offset, -kFar, kFar);
    w.after = std::clamp(w.after + w.offset, -kFar, kFar);
    w.offset = 0;
    w.causal = false;
    if (w.before >= Nq - 1) w.before = kFar;
    if (w.after >= Nk - 1) w.after = kFar;
  }
  return w;
}

double WindowPairs(const Lengths& n, const Window& w) {
  if (w.before + w.block + w.after <= 0) return 0;
  const double to = w.causal ? SteppedSum(n.nq, w.offset, 1, 1, n.nk)
                             : SteppedSum(n.nq, w.offset, w.block, w.block + w.after, n.nk);
  return to - SteppedSum(n.nq, w.offset, w.block, -w.before, n.nk);
}

double WindowTiles(const Lengths& n, const Window& w) {
  if (w.before + w.block + w.after <= 0) return 0;
  const int64_t rows = Tiles(n.nq), columns = Tiles(n.nk);
  const int64_t before = FloorDiv(w.before + kTile - 1, kTile);
  if (w.block == 1) {
    return SteppedSum(rows, 0, 1, FloorDiv(w.after + kTile - 1, kTile) + 1, columns) -
           SteppedSum(rows, 0, 1, FloorDiv(-w.before, kTile), columns);
  }
  if (w.block % kTile == 0 && w.offset % kTile == 0) {
    const int64_t W = w.block / kTile, offset = w.offset / kTile;
    const double to =
        w.causal ? SteppedSum(rows, offset, 1, 1, columns)
                 : SteppedSum(rows, offset, W, W + FloorDiv(w.after + kTile - 1, kTile), columns);
    return to - SteppedSum(rows, offset, W, -before, columns);
  }
  const int64_t sampled = std::min<int64_t>(rows, 64);
  // Each in another place of its stretch of rows: a step may be about the length of a block.
  constexpr double kGoldenRatio = 0.6180339887498949;
  double tiles = 0;
  for (int64_t s = 0; s < sampled; ++s) {
    const double place = std::fmod(static_cast<double>(s) * kGoldenRatio, 1);
    const int64_t first = s * rows / sampled, end_row = (s + 1) * rows / sampled;
    const int64_t row = first + static_cast<int64_t>(place * static_cast<double>(end_row - first));
    const int64_t p = std::min((row + 1) * kTile, n.nq) - 1 + w.offset;
    const int64_t end = (FloorDiv(p, w.block) + 1) * w.block + w.after;
    const int64_t begin = FloorDiv(row * kTile + w.offset, w.block) * w.block - w.before;
    const int64_t from = std::max<int64_t>(begin, 0);
    const int64_t to = std::min(w.causal ? std::min(end, p + 1) : end, n.nk) - 1;
    if (from <= to) tiles += static_cast<double>(to / kTile - from / kTile + 1);
  }
  return sampled == 0 ? 0 : tiles * rows / sampled;
}

Window WindowOf(const BlockBand& band) {
  const int64_t block = std::min(band.block, kFar);
  // Larger values show the same pairs, and products of smaller ones cannot overflow.
  const int64_t most = kFar / block + 2;
  return {.block = block,
          .before = block * std::min(band.look_backward, most),
          .after = block * std::min(band.look_forward, most),
          .offset = band.offset,
          .causal = band.causal};
}

Window BandWindow(int64_t lo, int64_t hi) {
  return {.before = lo == kUnbounded ? kFar : -std::max(lo, -kFar), .after = hi};
}

double BandPairs(const Lengths& lengths, int64_t lo, int64_t hi) {
  return WindowPairs(lengths, Canonical(lengths.nq, lengths.nk, BandWindow(lo, hi)));
}

}  // namespace attnd
