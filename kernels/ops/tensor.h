// What a formula computes with: a ragged list of arrays, one for each problem of the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/device/memory.h"

namespace attnd {

// Immutable handle; copies share. Problems may differ in every dimension but those that a
// primitive's contract fixes. An empty Tensor (no problems) means "none", e.g. "no gradient".
class Tensor {
 public:
  Tensor() = default;
  // buffers[p] keeps views[p] alive; null where the caller owns the memory.
  Tensor(std::vector<View> views, std::vector<std::shared_ptr<Buffer>> buffers);

  bool empty() const { return rep_ == nullptr; }
  size_t size() const { return rep_ == nullptr ? 0 : rep_->views.size(); }
  const View& operator[](size_t problem) const { return rep_->views[problem]; }
  const std::shared_ptr<Buffer>& buffer(size_t problem) const { return rep_->buffers[problem]; }
  // Identifies the value on a tape. Handles of the same value have the same id.
  const void* id() const { return rep_.get(); }

 private:
  struct Rep {
    std::vector<View> views;
    std::vector<std::shared_ptr<Buffer>> buffers;
  };
  std::shared_ptr<const Rep> rep_;
};

}  // namespace attnd
