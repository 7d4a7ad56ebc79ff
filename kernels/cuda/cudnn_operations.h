// The operations of a graph of cuDNN's, in the order in which they are asked for, and those that
// attention and its gradient share.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/cudnn_descriptor.h"
#include "kernels/cuda/cudnn_parts.h"

namespace attnd::cuda::dnn {

// y = mode(x, b) of elements, or b where t is false.
struct Elementwise {
  cudnnPointwiseMode_t mode;
  const Descriptor& x;
  const Descriptor *b = nullptr, *t = nullptr;
  cudnnDataType_t computed_as = CUDNN_DATA_FLOAT;
  int64_t axis = 0;  // of an index
};

class Operations {
 public:
  explicit Operations(GraphParts& parts) : parts_(parts), Nk_(parts.attend().Nk) {}

  const std::vector<const Descriptor*>& list() const { return list_; }

  void Multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c);
  // Of each row, to one column.
  const Descriptor& Reduce(cudnnReduceTensorOp_t by, const Descriptor& x);
  void Apply(const Elementwise& e, const Descriptor& y);
  const Descriptor& Apply(const Elementwise& e, cudnnDataType_t type, int64_t columns);
  // The two are views of the same elements, one the transposed of the other.
  const Descriptor& Transpose(const Descriptor& x, const Descriptor& y);

  // scale q k^T.
  const Descriptor& Scores(const Descriptor& queries, const Descriptor& transposed_keys,
                           const Descriptor& scale);
  // Scores, or what was made of each, where keys that a row does not see are hidden.
  const Descriptor& Hide(const Descriptor& scores);

 private:
  void Finish(Descriptor* operation);
  const Descriptor& Index(const Descriptor& scores, int64_t axis);
  const Descriptor& HideRight(const Descriptor& scores);
  const Descriptor& HideLeft(const Descriptor& scores);

  GraphParts& parts_;
  const int64_t Nk_;
  std::vector<const Descriptor*> list_;
};

}  // namespace attnd::cuda::dnn
