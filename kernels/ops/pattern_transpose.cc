#include "kernels/ops/pattern_transpose.h"

#include <algorithm>
#include <span>

#include "kernels/core/run_control.h"

namespace attnd {
namespace {

// How a tile is seen. kHidden: not at all.
struct Look {
  static constexpr int32_t kHidden = -2;
  int32_t mask = kHidden;
  int32_t terms = Run::kNoTerms;
  bool operator==(const Look&) const = default;
};

// Calls change(key_tile, look) for every tile that looks otherwise in `now` than in `before`. Cost:
// both lists plus the changes.
template <class Change>
void Differences(std::span<const Run> before, std::span<const Run> now, const Change& change) {
  size_t b = 0, n = 0;
  int32_t at = 0;
  // The look at `at`, and where it may change next.
  const auto look = [&at](std::span<const Run> runs, size_t* i, int32_t* until) {
    while (*i < runs.size() && runs[*i].first + runs[*i].count <= at) ++*i;
    if (*i == runs.size()) return Look{};
    const Run& run = runs[*i];
    *until = std::min(*until, run.first <= at ? run.first + run.count : run.first);
    return run.first <= at ? Look{run.mask, run.terms} : Look{};
  };
  for (;;) {
    int32_t until = INT32_MAX;
    const Look look_before = look(before, &b, &until);
    const Look look_now = look(now, &n, &until);
    if (until == INT32_MAX) return;
    if (look_before != look_now) {
      for (int32_t tile = at; tile < until; ++tile) change(tile, look_now);
    }
    at = until;
  }
}

}  // namespace

void AppendRun(const Run& run, int64_t begin, std::vector<Run>* runs) {
  if (static_cast<int64_t>(runs->size()) > begin) {
    Run& last = runs->back();
    if (last.mask == run.mask && last.terms == run.terms && last.first + last.count == run.first) {
      last.count += run.count;
      return;
    }
  }
  runs->push_back(run);
}

TileRows Transposed(const TileRows& by_query, int64_t key_tiles) {
  // A run of the result opens and closes where consecutive rows differ.
  struct Open {
    int32_t first = 0;
    Look look;
  };
  std::vector<Open> open(key_tiles);
  std::vector<std::pair<int32_t, Run>> closed;  // (key tile, run), ascending by the run's end
  const auto row_runs = [&by_query](int64_t row) -> std::span<const Run> {
    if (row < 0 || row >= by_query.rows()) return {};
    const int64_t begin = by_query.begin[row];
    return {by_query.runs.data() + begin, static_cast<size_t>(by_query.begin[row + 1] - begin)};
  };
  for (int64_t row = 0; row <= by_query.rows(); ++row) {
    if (CheckPoint()) break;
    const auto at = static_cast<int32_t>(row);
    Differences(row_runs(row - 1), row_runs(row), [&](int32_t tile, const Look& look) {
      Open& o = open[tile];
      if (o.look.mask != Look::kHidden) {
        closed.push_back({tile, {o.first, at - o.first, o.look.mask, o.look.terms}});
      }
      o = {at, look};
    });
  }
  TileRows by_key;
  by_key.begin.assign(key_tiles + 1, 0);
  for (const auto& [tile, run] : closed) ++by_key.begin[tile + 1];
  for (int64_t t = 0; t < key_tiles; ++t) by_key.begin[t + 1] += by_key.begin[t];
  by_key.runs.resize(closed.size());
  std::vector<int64_t> next(by_key.begin.begin(), by_key.begin.end() - 1);
  for (const auto& [tile, run] : closed) by_key.runs[next[tile]++] = run;
  return by_key;
}

}  // namespace attnd
