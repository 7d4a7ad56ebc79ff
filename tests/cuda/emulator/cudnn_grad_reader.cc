#include <utility>

#include "cudnn_reader.h"

namespace emu {

// shift = 1 * sum of dout out, in memory.
bool GraphReader::ReadShift(const Node& shift, DnnAttention* a) {
  const Node* const times_one = ElementwiseOf(shift, CUDNN_POINTWISE_MUL);
  const Node* const sum =
      times_one == nullptr ? nullptr : ReductionOf(X(*times_one), CUDNN_REDUCE_TENSOR_ADD);
  const Node* const shares =
      sum == nullptr
          ? nullptr
          : ElementwiseOf(sum->At(CUDNN_ATTR_OPERATION_REDUCTION_XDESC), CUDNN_POINTWISE_MUL);
  if (shares == nullptr || !IsNumber(B(*times_one), CUDNN_DATA_FLOAT) ||
      shift.Is(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
    return false;
  }
  a->one = NumberOf(B(*times_one));
  a->shift = TensorOf(shift);
  a->dout = TensorOf(X(*shares));
  a->out = TensorOf(B(*shares));
  return true;
}

// From dq = dS k on: dS = scale ((dout v^T - shift) P), P = exp(hidden(scale q k^T - lse)),
// dv = P^T dout, dk = dS^T q.
bool GraphReader::ReadGradient(DnnAttention* a) {
  const Node& last = *operations_.back();
  if (last.kind != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) return false;
  const Node& dq = last.At(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  a->is_gradient = true;
  a->dq = TensorOf(dq);
  const cudnnDataType_t type = a->dq.type;
  const Node* const rounding = ElementwiseOf(dq, CUDNN_POINTWISE_IDENTITY, {.result = type});
  const Node* const of_keys = rounding == nullptr ? nullptr : ProductOf(X(*rounding));
  if (of_keys == nullptr || X(*rounding).Is(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) return false;
  a->dq_sums = TensorOf(X(*rounding));
  const Node* const keys =
      TransposeOf(of_keys->At(CUDNN_ATTR_OPERATION_MATMUL_BDESC), CUDNN_DATA_FLOAT);
  const Node& dscores = of_keys->At(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  const Node* const scaling = ElementwiseOf(dscores, CUDNN_POINTWISE_MUL);
  const Node* const weighing =
      scaling == nullptr ? nullptr : ElementwiseOf(X(*scaling), CUDNN_POINTWISE_MUL);
  const Node* const shifting =
      weighing == nullptr ? nullptr : ElementwiseOf(X(*weighing), CUDNN_POINTWISE_SUB);
  const Node* const of_values = shifting == nullptr ? nullptr : ProductOf(X(*shifting));
  if (keys == nullptr || of_values == nullptr || !ReadShift(B(*shifting), a) ||
      !ReadTransposed(*of_values, CUDNN_ATTR_OPERATION_MATMUL_BDESC, &a->v)) {
    return false;
  }
  const Node& weights = B(*weighing);
  const Node* const exp = ElementwiseOf(weights, CUDNN_POINTWISE_EXP);
  const Node* const hidden = exp == nullptr ? nullptr : ReadMasks(X(*exp), a);
  const Node* const difference =
      hidden == nullptr ? nullptr : ElementwiseOf(*hidden, CUDNN_POINTWISE_SUB);
  const Node* const to_dv = ProductOfTransposed(weights, type);
  const Node* const to_dk = ProductOfTransposed(dscores, type);
  if (difference == nullptr || to_dv == nullptr || to_dk == nullptr ||
      !ReadScores(X(*difference), a)) {
    return false;
  }
  a->lse = TensorOf(B(*difference));
  a->dv = TensorOf(to_dv->At(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  a->dk = TensorOf(to_dk->At(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  const auto uid_of = [](const Node& tensor) { return TensorOf(tensor).uid; };
  return uid_of(of_values->At(CUDNN_ATTR_OPERATION_MATMUL_ADESC)) == a->dout.uid &&
         uid_of(to_dv->At(CUDNN_ATTR_OPERATION_MATMUL_BDESC)) == a->dout.uid &&
         uid_of(to_dk->At(CUDNN_ATTR_OPERATION_MATMUL_BDESC)) == a->q.uid &&
         uid_of(keys->At(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)) == a->k.uid &&
         NumberOf(B(*scaling)).uid == a->scale.uid && used_.size() == operations_.size();
}

}  // namespace emu
