// Rules of the pattern family between options, sizes and tensors of a request. Each adds a reason
// if it is broken.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/problem.h"
#include "kernels/method/shape_rules.h"
#include "kernels/methods/pattern/info.h"

namespace attnd {

// Rules of the common tensors beyond shapes: which go together, the values of cu_seqlens.
void CheckPatternTensors(const ProblemShape& problem, const Unsupported& unsupported,
                         Reasons* reasons);

// The largest value of an integer option, where that follows from sizes or other options: "nu must
// be in 1..D = 1..4, got 5". The option's own range covers values below `low`. `packed` names the
// cu_seqlens whose every sequence must be long enough as well, unless it is empty: "num_blocks must
// be in 1..Nk = 1..3 of sequence 1, got 4". False: a reason was added.
struct UpTo {
  int64_t low = 0;
  absl::string_view letter;  // "Nk"
  int64_t size = 0;
  absl::string_view packed = "";
};
bool CheckUpTo(const ProblemShape& problem, absl::string_view name, int64_t value, const UpTo& rule,
               Reasons* reasons);

// Keeps a small request from taking gigabytes: "num_blocks must be at most 4194304 / H = 1048576,
// got 2000000".
struct Limit {
  int64_t most = 0;
  absl::string_view letter;  // "(H T)"
  int64_t size = 0;
  absl::string_view where = "";  // " where it is drawn"
};
void CheckLimit(absl::string_view name, int64_t value, const Limit& limit, Reasons* reasons);

// How many sequences have patterns that are described one by one: packed ones, those of a batch
// with lengths, offsets or segments, or 1; `letter` names them. Their lengths may still be equal.
struct SeqsApart {
  int64_t count = 1;
  absl::string_view letter;
};
SeqsApart SeqsApartOf(const ProblemShape& problem);
// Limits `sources`, which are described for each sequence: "num_verts must be at
// most 262144 / B = 64 where batch rows differ in length, got 100".
void CheckSources(const ProblemShape& problem, absl::string_view name, int64_t sources,
                  Reasons* reasons);

constexpr size_t kMostExtents = 8;  // of a grid
// A row-major grid whose cells are the tokens: "grid must multiply to N = 6, got [2,4]".
void CheckGrid(const ProblemShape& problem, const std::vector<int64_t>& grid, Reasons* reasons);

// One of its axes, counted from 0 or (negative) from the end: "axis must be in -2..1, got 2".
bool CheckAxis(absl::string_view name, int64_t axis, const std::vector<int64_t>& grid,
               Reasons* reasons);

// An option that states the size of the last axis of a tensor of lists, where both are sent:
// "num_random must be that of rand_keys, 3, got 5". Lists have `rank` dimensions or more.
struct ListRule {
  absl::string_view tensor;
  int rank = 0;
};
void CheckListed(const ProblemShape& problem, absl::string_view name, std::optional<int64_t> value,
                 const ListRule& lists, Reasons* reasons);

// Both or none.
void CheckPair(const ProblemShape& problem, absl::string_view a, absl::string_view b,
               Reasons* reasons);
// Not both: "layout must not be sent with indptr, got [1,1,1]".
void CheckApart(const ProblemShape& problem, absl::string_view name, absl::string_view other,
                Reasons* reasons);

}  // namespace attnd
