#include "kernels/method/shape_rules.h"

#include "kernels/method/declared_shape.h"

namespace attnd {

void CheckShape(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
                const std::vector<Letter>& letters, Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr) return;
  const DeclaredShape declared = ParseShape(shape);
  for (const DeclaredShape::Letters& list : declared.lists) {
    if (!declared.FitsRank(list, view->shape.rank)) continue;
    const Letter* broken = nullptr;
    ForEachLetter(list, view->shape, [&](absl::string_view letter, int64_t size) {
      for (const Letter& known : letters) {
        const bool fits = size == known.size || (declared.broadcasts && size == 1);
        if (broken == nullptr && letter == known.letter && !fits) broken = &known;
      }
    });
    if (broken == nullptr) return;
    reasons->Invalid(name, " shape must be ", shape, " with ", broken->letter, " = ",
                     broken->meaning, broken->meaning.empty() ? "" : " = ", broken->size, ", got ",
                     ToString(view->shape));
    return;
  }
}

void CheckShapes(const ProblemShape& problem, const std::vector<TensorInfo>& inputs,
                 const std::vector<Letter>& letters, Reasons* reasons) {
  for (const TensorInfo& input : inputs) {
    CheckShape(problem, input.name, input.shape, letters, reasons);
  }
}

void CheckSize(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
               const Letter& letter, Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr) return;
  bool fits = true;
  for (const DeclaredShape::Letters& list : ParseShape(shape).lists) {
    if (list.size() != static_cast<size_t>(view->shape.rank)) return;
    ForEachLetter(list, view->shape, [&](absl::string_view l, int64_t size) {
      fits = fits && (l != letter.letter || size == letter.size);
    });
  }
  if (fits) return;
  reasons->Invalid(name, " shape must have ", letter.letter, " = ", letter.size, ", got ",
                   ToString(view->shape));
}

void CheckSameSize(absl::string_view option, std::optional<int64_t> value, absl::string_view tensor,
                   int64_t size, Reasons* reasons) {
  if (value.value_or(0) == 0 || *value == size) return;
  reasons->Invalid(option, " must be that of ", tensor, ", ", size, ", got ", *value);
}

}  // namespace attnd
