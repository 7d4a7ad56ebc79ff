#include "kernels/pattern/shapes/grids.h"

#include <algorithm>
#include <cmath>
#include <functional>

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

// Pairs of `nq` queries and `nk` keys of a line, which begin at its first cell.
double OfLine(int64_t nq, int64_t nk, bool causal) {
  return BandPairs({nq, nk}, kUnbounded, causal ? 0 : kUnbounded);
}

// Exact. A line has a cell in each of `length` rows of `step` cells; lengths cut the lines of one
// stretch of rows.
double LinePairs(const Lengths& n, int64_t length, int64_t step, bool causal) {
  const int64_t stretch = length * step, whole = std::min(n.nq / stretch, n.nk / stretch);
  const double pairs = static_cast<double>(whole * step) * OfLine(length, length, causal);
  // Of the next stretch: whole rows, and the cells of a row that is cut.
  const int64_t q = std::min(n.nq - whole * stretch, stretch);
  const int64_t k = std::min(n.nk - whole * stretch, stretch);
  const auto of_lines = [&](int64_t lines, bool longer_q, bool longer_k) {
    return static_cast<double>(lines) *
           OfLine(q / step + (longer_q ? 1 : 0), k / step + (longer_k ? 1 : 0), causal);
  };
  const int64_t more_q = q % step, more_k = k % step;
  const int64_t both = std::min(more_q, more_k), one = std::max(more_q, more_k) - both;
  return pairs + of_lines(both, true, true) + of_lines(one, more_q > more_k, more_k > more_q) +
         of_lines(step - both - one, false, false);
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
  // Tiles are an estimate where lengths cut lines: these count like lines of the inner axis.
  PatternCounts counts{LinePairs(seq.lengths, length, StepAlong(grid, axis), seq.causal),
                       natural.visible_tiles};
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

// Rows or columns [begin, end) of an image.
struct Stretch {
  int64_t begin = 0, end = 0;
};

// Of queries and keys in stretches of one axis, those that see each other along it.
using AlongAxis = std::function<double(const Stretch& q, const Stretch& k)>;

AlongAxis SeenAlong(const Window& window) {
  return [window](const Stretch& q, const Stretch& k) {
    const auto below = [&](int64_t nq, int64_t nk) { return WindowPairs({nq, nk}, window); };
    return below(q.end, k.end) - below(q.begin, k.end) - below(q.end, k.begin) +
           below(q.begin, k.begin);
  };
}

// The cells [0, n) of an image as whole rows and a part of the next one.
struct RasterCells {
  Stretch rows[2], columns[2];
};
RasterCells RasterOf(int64_t n, int64_t width) {
  const int64_t rows = n / width;
  return {{{0, rows}, {rows, rows + 1}}, {{0, width}, {0, n % width}}};
}

// Pairs whose rows see each other along y, and whose columns along x.
double RasterPairs(const Lengths& n, int64_t width, const AlongAxis& y, const AlongAxis& x) {
  const RasterCells q = RasterOf(n.nq, width), k = RasterOf(n.nk, width);
  double pairs = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      pairs += y(q.rows[i], k.rows[j]) * x(q.columns[i], k.columns[j]);
    }
  }
  return pairs;
}

// Causal or not; exact.
double ImagePairs(const ImageBlocks& m, bool causal, const Lengths& n) {
  const auto around = [](int64_t block, int64_t flange) {
    return SeenAlong({.block = block, .before = flange, .after = flange});
  };
  // Before the own block, and in it up to the query.
  const auto before = [](int64_t block, int64_t flange) {
    return SeenAlong({.block = block, .before = flange, .after = -block});
  };
  const auto up_to = [](int64_t block) { return SeenAlong({.block = block, .causal = true}); };
  const AlongAxis same = SeenAlong({});
  const auto pairs = [&](const AlongAxis& y, const AlongAxis& x) {
    return RasterPairs(n, m.width, y, x);
  };
  const AlongAxis y_block = around(m.block_height, 0), x_block = around(m.block_width, 0);
  if (!causal) {
    return pairs(around(m.block_height, m.flange_height), around(m.block_width, m.flange_width));
  }
  const double above =
      pairs(before(m.block_height, m.flange_height), around(m.block_width, m.flange_width));
  const double left = pairs(y_block, before(m.block_width, m.flange_width));
  // Of the own block earlier rows, and the own row up to the query.
  const double earlier_rows = pairs(up_to(m.block_height), x_block) - pairs(same, x_block);
  return above + left + earlier_rows + pairs(same, up_to(m.block_width));
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
  PatternCounts counts{.pairs = ImagePairs(m, seq.causal, seq.lengths)};
  counts.tiles = ImageTiles(m, seq.causal, seq.lengths);
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "image", Image{m, seq.lengths, seq.causal}, counts, SpecOf);
  source.gathers = true;
  source.is_counted = false;  // pairs are, tiles are not
  return source;
}

}  // namespace attnd
