// Rules between the shape of a tensor and sizes that its declaration leaves open.
#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/problem.h"

namespace attnd {

// The size that a letter of a declared shape stands for, and what else that size is called: {"V",
// 32, "relative_vocab_size"}.
struct Letter {
  absl::string_view letter;
  int64_t size = 0;
  absl::string_view meaning = "";
};
// Checks the sizes of a tensor, if it was sent and has a declared rank; `shape` as in TensorInfo,
// ".." stands for one dimension or more. Reports the first size that differs: "rel_emb_long shape
// must be [V,H,D] with V = relative_vocab_size = 32, got [8,4,3]".
void CheckShape(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
                const std::vector<Letter>& letters, Reasons* reasons);
// The same for all `inputs` as they are declared.
void CheckShapes(const ProblemShape& problem, const std::vector<TensorInfo>& inputs,
                 const std::vector<Letter>& letters, Reasons* reasons);

// An option that a tensor decides where it was sent: "k must be that of e, 4, got 8". A refused
// option is 0 and has its reason.
void CheckSameSize(absl::string_view option, std::optional<int64_t> value, absl::string_view tensor,
                   int64_t size, Reasons* reasons);

// The same for one letter, with a shorter message: "state_s shape must have F = 8, got [2,1,4,16]".
void CheckSize(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
               const Letter& letter, Reasons* reasons);

}  // namespace attnd
