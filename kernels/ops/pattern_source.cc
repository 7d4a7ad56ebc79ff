// Windows: their counts in closed form, and patterns before they are built.
#include "absl/strings/str_cat.h"
#include "kernels/ops/pattern_predicate.h"
#include "kernels/ops/pattern_tiles.h"

namespace attnd {
namespace {

constexpr int64_t kUnbounded = PatternBuilder::kUnbounded;

// Sum of clamp(W floor((i + offset) / W) + shift, 0, limit) over i in [0, n): the steps that lie
// whole inside [0, n) form an arithmetic series, the two at the ends are cut.
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

// The same pairs of Nq x Nk in numbers that cannot overflow and that are equal for equal patterns
// (where that is cheap to see).
Window Canonical(int64_t Nq, int64_t Nk, Window w) {
  w.block = std::min(w.block, kFar);
  w.before = std::clamp(w.before, -kFar, kFar);
  w.after = std::clamp(w.after, -kFar, kFar);
  if (w.causal) w.after = std::min<int64_t>(w.after, 0);
  if (w.block == 1) {
    // p - before <= j <= p + after: the offset moves both.
    w.before = std::clamp(w.before - w.offset, -kFar, kFar);
    w.after = std::clamp(w.after + w.offset, -kFar, kFar);
    w.offset = 0;
    w.causal = false;
    if (w.before >= Nq - 1) w.before = kFar;
    if (w.after >= Nk - 1) w.after = kFar;
  }
  return w;
}

// Of a canonical window.
double Pairs(const Lengths& n, const Window& w) {
  if (w.before + w.block + w.after <= 0) return 0;
  const double to = w.causal ? SteppedSum(n.nq, w.offset, 1, 1, n.nk)
                             : SteppedSum(n.nq, w.offset, w.block, w.block + w.after, n.nk);
  return to - SteppedSum(n.nq, w.offset, w.block, -w.before, n.nk);
}

// Tiles of a canonical window: in closed form where it moves by keys or by whole tiles, else from
// at most 64 rows of tiles that are spread evenly.
double TilesOf(const Lengths& n, const Window& w) {
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
  double tiles = 0;
  for (int64_t s = 0; s < sampled; ++s) {
    const int64_t row = s * rows / sampled;
    const int64_t p = std::min((row + 1) * kTile, n.nq) - 1 + w.offset;
    const int64_t end = (FloorDiv(p, w.block) + 1) * w.block + w.after;
    const int64_t begin = FloorDiv(row * kTile + w.offset, w.block) * w.block - w.before;
    const int64_t from = std::max<int64_t>(begin, 0);
    const int64_t to = std::min(w.causal ? std::min(end, p + 1) : end, n.nk) - 1;
    if (from <= to) tiles += static_cast<double>(to / kTile - from / kTile + 1);
  }
  return sampled == 0 ? 0 : tiles * rows / sampled;
}

Window BandWindow(int64_t lo, int64_t hi) {
  return {.before = lo == kUnbounded ? kFar : -std::max(lo, -kFar), .after = hi};
}

}  // namespace

PatternSource SourceOf(int64_t Nq, int64_t Nk, Visible visible, const PatternCounts& counts) {
  PatternSource source{.Nq = Nq,
                       .Nk = Nk,
                       .visible_pairs = counts.pairs,
                       .visible_tiles = counts.tiles,
                       .visible = std::move(visible)};
  if (source.visible == nullptr) return source;
  source.key = absl::StrCat(Nq, " ", Nk, " ", source.visible->key());
  source.build = [Nq, Nk, seen = source.visible] {
    PatternBuilder builder(Nq, Nk);
    builder.Add(*seen);
    return std::move(builder).Build();
  };
  return source;
}

PatternSource Intersect(const PatternSource& source, Visible visible) {
  Visible both =
      source.visible == nullptr ? std::move(visible) : And(source.visible, std::move(visible));
  PatternSource result =
      SourceOf(source.Nq, source.Nk, std::move(both), {source.visible_pairs, source.visible_tiles});
  result.is_counted = false;
  return result;
}

PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths) {
  const Window w = Canonical(Nq, Nk, window);
  const bool shows_all = w.block == 1 && w.before == kFar && w.after == kFar;
  return SourceOf(Nq, Nk, shows_all ? nullptr : Windows(w),
                  {Pairs(lengths, w), TilesOf(lengths, w)});
}

double BandPairs(const Lengths& lengths, int64_t lo, int64_t hi) {
  return Pairs(lengths, Canonical(lengths.nq, lengths.nk, BandWindow(lo, hi)));
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi) {
  return BandSource(Nq, Nk, lo, hi, {Nq, Nk});
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths) {
  return WindowSource(Nq, Nk, BandWindow(lo, hi), lengths);
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

PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths) {
  return WindowSource(Nq, Nk, WindowOf(band), lengths);
}

PatternSource PackedSource(std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                           const Window& window) {
  PatternCounts counts;
  for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
    const Lengths n{cu_q[s + 1] - cu_q[s], cu_k[s + 1] - cu_k[s]};
    Window w = window;
    w.offset += n.nk - n.nq;
    w = Canonical(n.nq, n.nk, w);
    counts.pairs += Pairs(n, w);
    // Segments do not begin at tile borders: a row of tiles meets half a tile more on either side;
    // short segments share their tiles.
    const double share = std::min(1.0, static_cast<double>(std::max(n.nq, n.nk)) / kTile);
    counts.tiles += share * TilesOf(n, w) + static_cast<double>(n.nq + n.nk) / (2 * kTile);
  }
  return SourceOf(cu_q.back(), cu_k.back(), PackedWindows(cu_q, cu_k, window), counts);
}

}  // namespace attnd
