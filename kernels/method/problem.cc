#include "kernels/method/problem.h"

#include <cstring>

namespace attnd {

int64_t IntAt(const View& view, int64_t i) {
  int32_t value = 0;
  std::memcpy(&value, view.As<char>() + i * view.stride[0] * SizeOf(DType::kI32), sizeof(value));
  return value;
}

const View* ProblemShape::Find(absl::string_view name) const {
  if (tensors == nullptr) return nullptr;
  const auto found = tensors->find(std::string(name));
  return found == tensors->end() ? nullptr : &found->second;
}

bool ProblemShape::HasSizesOf(absl::string_view name) const {
  const View* view = Find(name);
  return view != nullptr && view->shape.rank == 4;
}

int64_t ProblemShape::Int(absl::string_view name, int64_t b, int64_t absent) const {
  const View* view = Find(name);
  return view == nullptr || view->data == nullptr ? absent : IntAt(*view, b);
}

}  // namespace attnd
