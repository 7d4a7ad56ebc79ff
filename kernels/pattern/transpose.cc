#include "kernels/pattern/transpose.h"

#include <algorithm>
#include <span>

#include "kernels/core/run_control.h"

namespace attnd {
namespace {

// The mask and terms of a tile. kHidden: it is not visible.
struct Look {
  static constexpr int32_t kHidden = -3;
  int32_t mask = kHidden;
  int32_t terms = Run::kNoTerms;
  bool operator==(const Look&) const = default;
};

// Calls change(key_tile, look) for every tile whose look differs between `before` and `now`, until
// it returns false. Returns its last result. Cost: the length of both lists plus the changes.
template <class Change>
bool Differences(std::span<const Run> before, std::span<const Run> now, const Change& change) {
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
    if (until == INT32_MAX) return true;
    if (look_before != look_now) {
      for (int32_t tile = at; tile < until; ++tile) {
        if (!change(tile, look_now)) return false;
      }
    }
    at = until;
  }
}

// Calls close(key_tile, run of query tiles) for every run of the transposed rows, ascending within
// each key tile, until it returns false. Returns its last result. A run opens and closes where
// consecutive rows differ.
template <class Close>
bool EachClosed(const TileRows& by_query, int64_t key_tiles, const Close& close) {
  struct Open {
    int32_t first = 0;
    Look look;
  };
  std::vector<Open> open(key_tiles);
  const auto row_runs = [&by_query](int64_t row) -> std::span<const Run> {
    if (row < 0 || row >= by_query.rows()) return {};
    const int64_t begin = by_query.begin[row];
    return {by_query.runs.data() + begin, static_cast<size_t>(by_query.begin[row + 1] - begin)};
  };
  for (int64_t row = 0; row <= by_query.rows(); ++row) {
    if (CheckPoint()) break;
    const auto at = static_cast<int32_t>(row);
    const auto change = [&](int32_t tile, const Look& look) {
      const Open o = open[tile];
      open[tile] = {at, look};
      if (o.look.mask == Look::kHidden) return true;
      return close(tile, Run{o.first, at - o.first, o.look.mask, o.look.terms});
    };
    if (!Differences(row_runs(row - 1), row_runs(row), change)) return false;
  }
  return true;
}

}  // namespace

void AppendRun(const Run& run, int64_t begin, std::vector<Run>* runs) {
  if (static_cast<int64_t>(runs->size()) > begin && Continues(runs->back(), run)) {
    runs->back().count += run.count;
  } else {
    runs->push_back(run);
  }
}

TileRows Transposed(const TileRows& by_query, int64_t key_tiles, int64_t most) {
  TileRows by_key;
  by_key.begin.assign(key_tiles + 1, 0);
  int64_t runs = 0;
  const bool fits = EachClosed(by_query, key_tiles, [&](int32_t tile, const Run&) {
    ++by_key.begin[tile + 1];
    return ++runs <= most;
  });
  if (!fits) return {};
  for (int64_t t = 0; t < key_tiles; ++t) by_key.begin[t + 1] += by_key.begin[t];
  by_key.runs.resize(runs);
  std::vector<int64_t> next(by_key.begin.begin(), by_key.begin.end() - 1);
  EachClosed(by_query, key_tiles, [&](int32_t tile, const Run& run) {
    by_key.runs[next[tile]++] = run;
    return true;
  });
  return by_key;
}

}  // namespace attnd
