// Rules of the pattern family: what must hold between options, sizes and tensors of a request. Each
// adds its reason, if it is broken.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/problem.h"

namespace attnd {

struct Unsupported;  // pattern_methods.h

// Those of the common tensors that shapes do not tell: what goes together, values of cu_seqlens.
void CheckPatternTensors(const ProblemShape& problem, const Unsupported& unsupported,
                         Reasons* reasons);

// What a letter of a declared shape stands for: {"V", 32, "relative_vocab_size"}.
struct Letter {
  absl::string_view letter;
  int64_t size = 0;
  absl::string_view meaning = "";
};
// Sizes of a tensor, if it is there and of a declared rank; `shape` as in TensorInfo, ".." stands
// for one dimension or more: "rel_emb_long shape must be [V,H,D] with V = relative_vocab_size = 32,
// got [8,4,3]". Tells the first size that differs.
void CheckShape(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
                const std::vector<Letter>& letters, Reasons* reasons);
// Of all `inputs` as they are declared.
void CheckShapes(const ProblemShape& problem, const std::vector<TensorInfo>& inputs,
                 const std::vector<Letter>& letters, Reasons* reasons);

// The largest value of an integer option, where that follows from sizes or other options: "nu must
// be in 1..D = 1..4, got 5". What is below `low` is told by the option's range. `packed` names the
// cu_seqlens whose every sequence must be long enough as well, unless it is empty: "num_blocks must
// be in 1..Nk = 1..3 of sequence 1, got 4". False: it was told.
struct UpTo {
  int64_t low = 0;
  absl::string_view letter;  // "Nk"
  int64_t size = 0;
  absl::string_view packed = "";
};
bool CheckUpTo(const ProblemShape& problem, absl::string_view name, int64_t value, const UpTo& rule,
               Reasons* reasons);

// So that a few bytes of a request cannot ask for gigabytes: "num_blocks must be at most 4194304 /
// H = 1048576, got 2000000".
struct Limit {
  int64_t most = 0;
  absl::string_view letter;  // "(H T)"
  int64_t size = 0;
  absl::string_view where = "";  // " where it is drawn"
};
void CheckLimit(absl::string_view name, int64_t value, const Limit& limit, Reasons* reasons);

// Rows whose patterns are described one by one, whatever their lengths turn out to be: packed
// sequences, batch rows with lengths, offsets or segments, or 1; `letter` names them.
struct SeqsApart {
  int64_t count = 1;
  absl::string_view letter;
};
SeqsApart SeqsApartOf(const ProblemShape& problem);
// What of each row is described for heads that differ, `sources` of them: "num_verts must be at
// most 262144 / B = 64 where batch rows differ in length, got 100".
void CheckSources(const ProblemShape& problem, absl::string_view name, int64_t sources,
                  Reasons* reasons);

constexpr size_t kMostExtents = 8;  // of a grid
// A row-major grid whose cells are the tokens: "grid must multiply to N = 6, got [2,4]".
void CheckGrid(const ProblemShape& problem, const std::vector<int64_t>& grid, Reasons* reasons);

// One of its axes, counted from 0 or (negative) from the end: "axis must be in -2..1, got 2".
bool CheckAxis(absl::string_view name, int64_t axis, const std::vector<int64_t>& grid,
               Reasons* reasons);

// An option that tells the last axis of a tensor of lists, where both are there: "num_random must
// be that of rand_keys, 3, got 5". Lists have `rank` dimensions or more.
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
