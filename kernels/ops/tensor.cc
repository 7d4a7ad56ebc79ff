#include "kernels/ops/tensor.h"

#include <cassert>

namespace attnd {

Tensor::Tensor(std::vector<View> views, std::vector<std::shared_ptr<Buffer>> buffers) {
  assert(views.size() == buffers.size());
  if (views.empty()) return;
  rep_ = std::make_shared<const Rep>(Rep{std::move(views), std::move(buffers)});
}

}  // namespace attnd
