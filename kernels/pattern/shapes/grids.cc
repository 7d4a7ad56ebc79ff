#include "kernels/pattern/shapes/grids.h"

#include <algorithm>
#include <cmath>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

// Labels of slots in lines of `length`: the place of the key in its line.
class PlaceInLine : public Constants {
 public:
  explicit PlaceInLine(int64_t length) : length_(length) {}

  void Fill(int64_t, int64_t key_tile, TileTerms* terms) const override {
    terms->labels.resize(kTile * kTile);
    for (int64_t key = 0; key < kTile; ++key) {
      const auto place = static_cast<uint16_t>((key_tile * kTile + key) % length_);
      std::fill_n(terms->labels.begin() + key * kTile, kTile, place);
    }
  }
  TileShape Shape(int64_t, int64_t key_tile) const override {
    return {1, {key_tile * kTile % length_}};
  }
  int64_t bytes() const override { return sizeof(*this); }

 private:
  const int64_t length_;
};

struct LineKind {
  bool with_self = true;  // or without the cell itself
  bool is_labelled = false;
};

// A line along `axis` of a grid.
struct Line {
  std::vector<int64_t> grid;
  int64_t axis;
  bool is_inner;  // natural order: a line is a stretch of cells
  LineKind kind;
  bool causal;
  Lengths lengths;  // if is_inner, of the grid
};

PatternSpec SpecOf(const Line& line) {
  const int64_t N = StepAlong(line.grid, -1);
  const Window window{.block = line.grid[line.axis], .causal = line.causal};
  PatternSpec made{.Nq = N, .Nk = N, .visible = Windows(window)};
  if (!line.kind.with_self) made.visible = AndNot(made.visible, Band(0, 0));
  if (line.kind.is_labelled) made.constants = std::make_shared<PlaceInLine>(window.block);
  if (line.is_inner) return made;
  made.query_rows = LineOrder(line.grid, line.axis);
  made.key_rows = made.query_rows;
  HideFrom(line.lengths.nq, &made.query_rows);
  HideFrom(line.lengths.nk, &made.key_rows);
  return made;
}

PatternSource LineSource(const PatternSeq& seq, std::span<const int64_t> grid, int64_t axis,
                         const LineKind& kind) {
  const auto [with_self, is_labelled] = kind;
  const int64_t length = grid[axis];
  const Window line{.block = length, .causal = seq.causal};
  const bool is_inner =
      std::all_of(grid.begin() + axis + 1, grid.end(), [](int64_t extent) { return extent == 1; });
  const PatternSource natural = WindowSource(seq.Nq, seq.Nk, line, seq.lengths);
  if (is_inner && with_self && !is_labelled) return natural;
  // An estimate where lengths cut lines: these count like lines of the inner axis.
  PatternCounts counts{natural.visible_pairs, natural.visible_tiles};
  if (!with_self) {
    counts.pairs -= static_cast<double>(std::min(seq.lengths.nq, seq.lengths.nk));
  }
  if (is_labelled) counts.term_bytes = sizeof(uint16_t);
  Line parameters{{grid.begin(), grid.end()}, axis, is_inner, kind, seq.causal, seq.lengths};
  if (is_inner) parameters.lengths = {seq.Nq, seq.Nk};
  PatternSource source = SourceOf(seq.Nq, seq.Nk, "line", std::move(parameters), counts, SpecOf);
  source.gathers = !is_inner;
  const bool is_whole = seq.lengths.nq == seq.Nq && seq.lengths.nk == seq.Nk;
  source.is_counted = is_inner || is_whole;
  return source;
}

// Positions that the positions of one axis see before their block, in it and behind it, summed.
struct AxisSums {
  double before = 0, own = 0, behind = 0;
  double squares = 0;  // of the sizes of all blocks
};

// first + (first + step) + .., `count` terms, none above `cap`.
double CappedSum(int64_t count, int64_t first, int64_t step, int64_t cap) {
  const int64_t below = first > cap ? 0 : std::min(count, (cap - first) / step + 1);
  const auto n = static_cast<double>(below);
  return n * static_cast<double>(first) + static_cast<double>(step) * n * (n - 1) / 2 +
         static_cast<double>(count - below) * static_cast<double>(cap);
}

// Whole blocks, and a short one at the end, whose flange begins where a whole block would end.
AxisSums SumsOf(int64_t n, int64_t block, int64_t flange) {
  const int64_t whole = n / block, rest = n % block;
  const auto size = static_cast<double>(block), tail = static_cast<double>(rest);
  const double squares = static_cast<double>(whole) * size * size + tail * tail;
  return {.before = size * CappedSum(whole, 0, block, flange) +
                    tail * static_cast<double>(std::min(flange, n - rest)),
          .own = squares,
          .behind = size * CappedSum(whole, rest, block, flange),
          .squares = squares};
}

// Causal or not; exact for a whole image.
double ImagePairs(const ImageBlocks& m, bool causal) {
  const AxisSums y = SumsOf(m.height, m.block_height, m.flange_height);
  const AxisSums x = SumsOf(m.width, m.block_width, m.flange_width);
  if (!causal) return (y.before + y.own + y.behind) * (x.before + x.own + x.behind);
  const double own = (y.squares * x.squares + static_cast<double>(m.height * m.width)) / 2;
  return y.before * (x.before + x.own + x.behind) + y.own * x.before + own;
}

// About, for tiles of queries in the middle of a large image.
double ImageTiles(const ImageBlocks& m, bool causal, const Lengths& lengths) {
  const auto tile = static_cast<double>(kTile);
  const auto rows = static_cast<double>(Tiles(lengths.nq)),
             columns = static_cast<double>(Tiles(lengths.nk));
  if (rows == 0 || columns == 0) return 0;
  // Blocks at the end are smaller.
  const int64_t down = CeilDiv(m.height, m.block_height), across = CeilDiv(m.width, m.block_width);
  const auto in_row = static_cast<double>(across);
  const double height = static_cast<double>(m.height) / static_cast<double>(down),
               width = static_cast<double>(m.width) / in_row, area = height * width;
  const auto flange = static_cast<double>(m.flange_height);
  const double beside = std::ceil(static_cast<double>(m.flange_width) / width);
  const bool fills_tiles = std::fmod(area, tile) == 0;
  const bool is_aligned = fills_tiles || (std::fmod(tile, area) == 0 && beside == 0);
  // Blocks that a tile of queries meets; those of other rows of blocks add stretches of their own.
  const double met = is_aligned ? std::max(tile / area, 1.0) : 1 + (tile - 1) / area;
  const double rows_met = is_aligned ? std::max(met / in_row, 1.0) : 1 + (met - 1) / in_row;
  const double seen = std::min(met / rows_met + 2 * beside, in_row);
  // Of a stretch of blocks, the tiles that hold `lines` of each.
  const auto stretch = [&](double blocks, double lines) {
    const double ends = is_aligned ? 0 : 1 - 1 / tile;
    // Blocks that stand out of the tile of queries at both ends meet three at least.
    const double whole = std::max(blocks * area / tile + ends, is_aligned ? 1.0 : 3.0);
    return std::min(whole, blocks * (1 + (lines * width - 1) / tile));
  };
  double above = std::floor(flange / height) * stretch(seen, height);
  const double rest = std::fmod(flange, height);
  if (rest > 0) above += stretch(seen, rest);
  const double own = stretch(causal ? seen - std::min(beside, seen - 1) : seen, height);
  const double row = rows_met * (own + (causal ? 1 : 2) * above);
  return rows * std::min(row, columns);
}

struct Image {
  ImageBlocks blocks;
  Lengths lengths;
  bool causal;
};

PatternSpec SpecOf(const Image& image) {
  const auto& [m, lengths, causal] = image;
  const int64_t N = m.height * m.width;
  PatternSpec spec{.Nq = N, .Nk = N};
  const RowOrder order = ImageBlockOrder(m.height, m.width, m.block_height, m.block_width);
  // Rows (y) and columns (x) of the slots, and the ranges of both that the block of a query sees.
  Coordinates y, x;
  for (const int64_t pixel : order) {
    const int64_t v = pixel / m.width, u = pixel % m.width;
    const int64_t top = v - v % m.block_height, left = u - u % m.block_width;
    const int64_t below = causal ? 0 : m.flange_height;
    y.x.push_back(static_cast<int32_t>(v));
    x.x.push_back(static_cast<int32_t>(u));
    y.lo.push_back(static_cast<int32_t>(std::max<int64_t>(top - m.flange_height, 0)));
    x.lo.push_back(static_cast<int32_t>(std::max<int64_t>(left - m.flange_width, 0)));
    y.hi.push_back(static_cast<int32_t>(std::min(top + m.block_height + below, m.height) - 1));
    x.hi.push_back(
        static_cast<int32_t>(std::min(left + m.block_width + m.flange_width, m.width) - 1));
  }
  spec.visible = And(Within(std::move(y)), Within(std::move(x)));
  // Slots are in block-raster order: blocks above, to the left, earlier pixels of the own block.
  if (causal) spec.visible = And(Band(kUnbounded, 0), spec.visible);
  spec.query_rows = spec.key_rows = order;
  HideFrom(lengths.nq, &spec.query_rows);
  HideFrom(lengths.nk, &spec.key_rows);
  return spec;
}

}  // namespace

PatternSource AxialSource(const PatternSeq& seq, std::span<const int64_t> grid, int64_t axis,
                          bool is_labelled) {
  return LineSource(seq, grid, axis, {.is_labelled = is_labelled});
}

PatternParts AxialCross(const PatternSeq& seq, std::span<const int64_t> grid) {
  PatternParts parts;
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    // A line of one cell is that cell, which the first part shows.
    if (axis > 0 && grid[axis] == 1) continue;
    parts.push_back(LineSource(seq, grid, static_cast<int64_t>(axis), {.with_self = axis == 0}));
  }
  return parts;
}

PatternSource ImageLocal1d(const PatternSeq& seq, int64_t lq, int64_t lm) {
  const Window window{
      .block = lq, .before = lm, .after = seq.causal ? 0 : lm, .causal = seq.causal};
  return WindowSource(seq.Nq, seq.Nk, window, seq.lengths);
}

PatternSource ImageLocal2d(const PatternSeq& seq, const ImageBlocks& image) {
  ImageBlocks m = image;
  m.block_height = std::min(m.block_height, m.height);
  m.block_width = std::min(m.block_width, m.width);
  m.flange_height = std::min(m.flange_height, m.height);
  m.flange_width = std::min(m.flange_width, m.width);
  PatternCounts counts{.pairs = ImagePairs(m, seq.causal)};
  counts.tiles = ImageTiles(m, seq.causal, seq.lengths);
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "image", Image{m, seq.lengths, seq.causal}, counts, SpecOf);
  source.gathers = true;
  source.is_counted = false;  // pairs of a whole image are, tiles are not
  return source;
}

}  // namespace attnd
