// Follows the operations of a graph of the stand-in for cuDNN from their results to what they were
// made of.
#pragma once

#include <set>
#include <vector>

#include "cudnn_attend.h"
#include "cudnn_node.h"

namespace emu {

const Node& X(const Node& elementwise);
const Node& B(const Node& elementwise);
bool IsSame(const Node& tensor, const Node& other);

// As engines of NVIDIA's do, the stand-in knows one way to say attention and one to say its
// gradient, and nothing of operations beside it.
class GraphReader {
 public:
  explicit GraphReader(const Nodes& operations) : operations_(operations) {}

  // False: another graph.
  bool ReadForward(DnnAttention* attention);
  bool ReadGradient(DnnAttention* attention);

 private:
  struct Types {
    cudnnDataType_t result = CUDNN_DATA_FLOAT, computed_as = CUDNN_DATA_FLOAT;
  };
  // The operation whose result it is; null: there is none of this kind.
  const Node* ProductOf(const Node& result);
  const Node* ReductionOf(const Node& result, cudnnReduceTensorOp_t by);
  const Node* ElementwiseOf(const Node& result, cudnnPointwiseMode_t mode, Types types);
  const Node* ElementwiseOf(const Node& result, cudnnPointwiseMode_t mode) {
    return ElementwiseOf(result, mode, Types());
  }
  const Node* TransposeOf(const Node& result, cudnnDataType_t type);
  // The product of the transposed of a tensor, of this type, by another one.
  const Node* ProductOfTransposed(const Node& tensor, cudnnDataType_t type);
  const Node* IfFits(bool fits, const Node* operation);

  // From the result to the scores that masks hide some of.
  const Node* ReadMasks(const Node& hidden, DnnAttention* attention);
  bool ReadMask(const Node& select, DnnMask* mask);
  bool IsIndex(const Node& tensor, const Node& scores, int64_t axis);
  // Of scores that nothing hides.
  bool ReadScores(const Node& scores, DnnAttention* attention);
  bool ReadLse(const Node& most, const Node& sum, DnnTensor* lse);
  bool ReadShift(const Node& shift, DnnAttention* attention);
  bool ReadTransposed(const Node& product, cudnnBackendAttributeName_t name, DnnTensor* tensor);

  const Nodes& operations_;
  std::set<const Node*> used_;
};

}  // namespace emu
