#include "attnd/reply.h"

#include "kernels/core/copy.h"

namespace attnd::client {

int64_t ReplyTensor::bytes() const {
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  return bytes;
}

void ReplyTensor::CopyTo(void* to) const { CopyPieces(pieces, to); }

const ReplyTensor* Reply::Find(absl::string_view name) const {
  for (const ReplyTensor& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

}  // namespace attnd::client
