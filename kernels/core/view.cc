#include "kernels/core/view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd {

std::string ToString(const Shape& shape) {
  const auto begin = shape.dims.begin();
  return absl::StrCat("[", absl::StrJoin(begin, begin + shape.rank, ","), "]");
}

View DenseView(void* data, DType dtype, const Shape& shape, Layout layout) {
  View view{.data = data, .dtype = dtype, .layout = layout, .shape = shape};
  // Memory order of the dimensions, outermost first.
  std::array<int, kMaxRank> order = {0, 1, 2, 3, 4, 5};
  if (layout == Layout::kBNHD && shape.rank == 4) order = {0, 2, 1, 3};
  // Unsigned: a shape that is not checked yet may overflow; it is refused later.
  uint64_t distance = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    view.stride[order[i]] = static_cast<int64_t>(distance);
    distance *= static_cast<uint64_t>(shape.dims[order[i]]);
  }
  return view;
}

}  // namespace attnd
