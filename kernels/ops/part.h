// A part of a view.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/integer.h"
#include "kernels/core/view.h"

namespace attnd {

// Elements [begin, end) with a step along one axis.
inline View Part(const View& view, int axis, int64_t begin, int64_t end, int64_t step) {
  View part = view;
  part.layout = Layout::kBHND;
  part.shape.dims[axis] = std::max<int64_t>(CeilDiv(end - begin, step), 0);
  if (view.data != nullptr && part.shape.size() > 0) {
    part.data = view.As<char>() + begin * view.stride[axis] * SizeOf(view.dtype);
  }
  part.stride[axis] = view.stride[axis] * step;
  return part;
}

}  // namespace attnd
