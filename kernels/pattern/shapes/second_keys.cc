#include "kernels/pattern/shapes/second_keys.h"

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

// Keys of a second source behind the keys [0, nk) of `near`; null: alone.
struct AppendedKeys {
  Lengths lengths;
  Visible near;
  std::vector<int32_t> rows;
  Visible visible;
};

PatternSpec SpecOf(const AppendedKeys& second) {
  const auto& [lengths, near, rows, visible] = second;
  PatternSpec spec{.Nq = lengths.nq, .visible = visible, .key_rows = rows};
  if (near != nullptr) {
    spec.key_rows = AppendedOrder(lengths.nk, rows);
    const Visible all = Band(kUnbounded, kFar);
    spec.visible = Beside(near, Tiles(lengths.nk), visible ? visible : all);
  }
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  return spec;
}

}  // namespace

PatternSource WithSecondKeys(const PatternSeq& seq, const std::optional<Window>& local,
                             const SecondKeys& second) {
  PatternCounts counts = second.counts;
  Visible near;
  if (local.has_value()) {
    const PatternSource natural = WindowSource(seq.Nq, seq.Nk, *local, seq.lengths);
    counts.pairs += natural.visible_pairs;
    counts.tiles += natural.visible_tiles;
    near = Windows(*local);
  }
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "second",
               AppendedKeys{seq.lengths, near, second.rows, second.visible}, counts, SpecOf);
  source.gathers = true;
  return source;
}

}  // namespace attnd
