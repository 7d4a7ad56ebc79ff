// Counts of band patterns in closed form, and the cache of built patterns.
#include <algorithm>
#include <list>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/ops/pattern.h"

namespace attnd {
namespace {

constexpr int64_t kUnbounded = PatternBuilder::kUnbounded;
// Longer than any sequence or offset; sums and products of two of it stay within int64 and doubles.
constexpr int64_t kFar = int64_t{1} << 33;

int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Sum of clamp(i + shift, 0, limit) over i in [0, n).
double ClampedSum(int64_t n, int64_t shift, int64_t limit) {
  // Zero for i < rise, limit for i >= top.
  const int64_t rise = std::clamp<int64_t>(-shift, 0, n);
  const int64_t top = std::clamp<int64_t>(limit - shift, rise, n);
  const double slope = static_cast<double>(top - rise);
  return slope * shift + slope * (rise + top - 1) / 2 + static_cast<double>(n - top) * limit;
}

// Sum of clamp(W * floor((i + offset) / W) + shift, 0, limit) over i in [0, n): the steps that lie
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

// Bounds that no longer matter become the same number, so that equal patterns have equal keys.
struct BandBounds {
  int64_t lo, hi;
};
BandBounds Canonical(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi) {
  if (lo == kUnbounded || lo <= 1 - Nq) lo = -kFar;
  if (hi == kUnbounded || hi >= Nk - 1) hi = kFar;
  return {std::min(lo, kFar), std::max(hi, -kFar)};
}

double BandTiles(const Lengths& lengths, const BandBounds& band) {
  if (band.lo > band.hi) return 0;
  const int64_t rows = (lengths.nq + kTile - 1) / kTile;
  const int64_t columns = (lengths.nk + kTile - 1) / kTile;
  // Row r sees the key tiles from floor((64 r + lo) / 64) to floor((64 r + 63 + hi) / 64).
  return ClampedSum(rows, FloorDiv(band.hi + kTile - 1, kTile) + 1, columns) -
         ClampedSum(rows, FloorDiv(band.lo, kTile), columns);
}

// The keys [lo, hi] of query i.
struct Interval {
  int64_t lo, hi;
};
Interval KeysOf(const BlockBand& band, int64_t i) {
  const int64_t p = i + band.offset;
  const int64_t own = FloorDiv(p, band.block);
  const int64_t end = (own + band.look_forward + 1) * band.block - 1;
  return {(own - band.look_backward) * band.block, band.causal ? std::min(end, p) : end};
}

// Counts the rows of tiles one by one up to 256 of them, else 256 that are spread evenly.
double BlockTiles(const Lengths& lengths, const BlockBand& band) {
  const int64_t rows = (lengths.nq + kTile - 1) / kTile;
  const int64_t sampled = std::min<int64_t>(rows, 256);
  double tiles = 0;
  for (int64_t s = 0; s < sampled; ++s) {
    const int64_t row = s * rows / sampled;
    const int64_t last = std::min((row + 1) * kTile, lengths.nq) - 1;
    const int64_t from = std::max<int64_t>(KeysOf(band, row * kTile).lo, 0);
    const int64_t to = std::min(KeysOf(band, last).hi, lengths.nk - 1);
    if (from <= to) tiles += static_cast<double>(to / kTile - from / kTile + 1);
  }
  return sampled == 0 ? 0 : tiles * rows / sampled;
}

}  // namespace

double BandPairs(const Lengths& lengths, int64_t lo, int64_t hi) {
  const BandBounds band = Canonical(lengths.nq, lengths.nk, lo, hi);
  if (band.lo > band.hi) return 0;
  return ClampedSum(lengths.nq, band.hi + 1, lengths.nk) -
         ClampedSum(lengths.nq, band.lo, lengths.nk);
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi) {
  return BandSource(Nq, Nk, lo, hi, {Nq, Nk});
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths) {
  const BandBounds band = Canonical(Nq, Nk, lo, hi);
  PatternSource source{.key = absl::StrCat("band ", Nq, " ", Nk, " ", band.lo, " ", band.hi),
                       .visible_pairs = BandPairs(lengths, lo, hi),
                       .visible_tiles = BandTiles(lengths, band)};
  if (band.lo == -kFar && band.hi == kFar) return source;
  source.build = [Nq, Nk, band] {
    PatternBuilder builder(Nq, Nk);
    builder.AddBand(band.lo, band.hi);
    return std::move(builder).Build();
  };
  return source;
}

PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths) {
  BlockBand b = band;
  // Larger values show the same pairs, and products of smaller ones cannot overflow.
  b.block = std::min(b.block, kFar);
  b.look_backward = std::min(b.look_backward, kFar / b.block + 2);
  b.look_forward = std::min(b.look_forward, kFar / b.block + 2);
  const double seen_to =
      b.causal && b.look_forward >= 0
          ? ClampedSum(lengths.nq, b.offset + 1, lengths.nk)
          : SteppedSum(lengths.nq, b.offset, b.block, (b.look_forward + 1) * b.block, lengths.nk);
  const double seen_from =
      SteppedSum(lengths.nq, b.offset, b.block, -b.look_backward * b.block, lengths.nk);
  PatternSource source{
      .key = absl::StrCat("block ", Nq, " ", Nk, " ", b.block, " ", b.look_backward, " ",
                          b.causal ? 0 : b.look_forward, " ", b.offset, " ", b.causal),
      .visible_pairs = seen_to - seen_from,
      .visible_tiles = BlockTiles(lengths, b)};
  source.build = [Nq, Nk, b] {
    PatternBuilder builder(Nq, Nk);
    builder.AddIntervals([&](int64_t i) { return KeysOf(b, i).lo; },
                         [&](int64_t i) { return KeysOf(b, i).hi; });
    return std::move(builder).Build();
  };
  return source;
}

struct PatternCache::Impl {
  struct Entry {
    std::string key;
    std::shared_ptr<const Pattern> pattern;
    int64_t bytes;
  };
  std::list<Entry> entries;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key;
  int64_t bytes = 0;

  std::shared_ptr<const Pattern> Find(const std::string& key) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) return nullptr;
    entries.splice(entries.begin(), entries, found->second);
    return found->second->pattern;
  }
};

PatternCache::PatternCache(int64_t max_bytes)
    : max_bytes_(max_bytes), impl_(std::make_unique<Impl>()) {}
PatternCache::~PatternCache() = default;

std::shared_ptr<const Pattern> PatternCache::Get(const PatternSource& source) {
  {
    MutexLock lock(&mu_);
    if (auto found = impl_->Find(source.key)) return found;
  }
  auto built = std::make_shared<const Pattern>(source.build());
  const auto bytes_of = [](const TileRows& rows) {
    return rows.begin.capacity() * sizeof(int64_t) + rows.runs.capacity() * sizeof(Run);
  };
  const auto bytes = static_cast<int64_t>(sizeof(Pattern) + 2 * source.key.size() +
                                          built->masks.capacity() * sizeof(TileMask) +
                                          bytes_of(built->by_query) + bytes_of(built->by_key));
  std::list<Impl::Entry> out;  // dropped after the lock
  MutexLock lock(&mu_);
  if (auto found = impl_->Find(source.key)) return found;  // somebody else was faster
  impl_->entries.push_front({source.key, built, bytes});
  impl_->by_key[source.key] = impl_->entries.begin();
  impl_->bytes += bytes;
  while (impl_->bytes > max_bytes_) {
    Impl::Entry& last = impl_->entries.back();
    impl_->bytes -= last.bytes;
    impl_->by_key.erase(last.key);
    out.splice(out.begin(), impl_->entries, std::prev(impl_->entries.end()));
  }
  return built;
}

}  // namespace attnd
