#include "kernels/cuda/cudnn_operations.h"

namespace attnd::cuda::dnn {

void Operations::Multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c) {
  const cudnnDataType_t computed_as = CUDNN_DATA_FLOAT;
  Descriptor& kind = parts_.New(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  kind.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_as);
  kind.Finalize();
  Descriptor& product = parts_.New(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  product.Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  Finish(&product);
}

const Descriptor& Operations::Reduce(cudnnReduceTensorOp_t by, const Descriptor& x) {
  const cudnnDataType_t computed_as = CUDNN_DATA_FLOAT;
  const Descriptor& y = parts_.Virtual(CUDNN_DATA_FLOAT, 1);
  Descriptor& kind = parts_.New(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  kind.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed_as);
  kind.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
  kind.Finalize();
  Descriptor& reduction = parts_.New(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  reduction.Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  Finish(&reduction);
  return y;
}

void Operations::Apply(const Elementwise& e, const Descriptor& y) {
  Descriptor& kind = parts_.New(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &e.mode);
  kind.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &e.computed_as);
  if (e.mode == CUDNN_POINTWISE_GEN_INDEX) kind.Set(CUDNN_ATTR_POINTWISE_AXIS, e.axis);
  kind.Finalize();
  Descriptor& operation = parts_.New(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, e.x);
  if (e.b != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *e.b);
  if (e.t != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *e.t);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  Finish(&operation);
}

const Descriptor& Operations::Apply(const Elementwise& e, cudnnDataType_t type, int64_t columns) {
  const Descriptor& y = parts_.Virtual(type, columns);
  Apply(e, y);
  return y;
}

const Descriptor& Operations::Transpose(const Descriptor& x, const Descriptor& y) {
  Descriptor& operation = parts_.New(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  Finish(&operation);
  return y;
}

void Operations::Finish(Descriptor* operation) {
  operation->Finalize();
  list_.push_back(operation);
}

const Descriptor& Operations::Index(const Descriptor& scores, int64_t axis) {
  return Apply({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = scores, .axis = axis}, CUDNN_DATA_INT32,
               Nk_);
}

// row + after >= column stays.
const Descriptor& Operations::HideRight(const Descriptor& scores) {
  const Descriptor &row = Index(scores, 2), &column = Index(scores, 3);
  const Descriptor& last = Apply({.mode = CUDNN_POINTWISE_ADD,
                                  .x = row,
                                  .b = &parts_.Number(Uid::kAfter, CUDNN_DATA_INT32),
                                  .computed_as = CUDNN_DATA_INT32},
                                 CUDNN_DATA_INT32, Nk_);
  const Descriptor& stays = Apply(
      {.mode = CUDNN_POINTWISE_CMP_GE, .x = last, .b = &column, .computed_as = CUDNN_DATA_BOOLEAN},
      CUDNN_DATA_BOOLEAN, Nk_);
  return Apply({.mode = CUDNN_POINTWISE_BINARY_SELECT,
                .x = scores,
                .b = &parts_.Number(Uid::kRightHidden, CUDNN_DATA_FLOAT),
                .t = &stays},
               CUDNN_DATA_FLOAT, Nk_);
}

// column + before > row stays, where `before` counts the row itself.
const Descriptor& Operations::HideLeft(const Descriptor& scores) {
  const Descriptor &row = Index(scores, 2), &column = Index(scores, 3);
  const Descriptor& end = Apply({.mode = CUDNN_POINTWISE_ADD,
                                 .x = column,
                                 .b = &parts_.Number(Uid::kBefore, CUDNN_DATA_FLOAT)},
                                CUDNN_DATA_FLOAT, Nk_);
  const Descriptor& stays = Apply(
      {.mode = CUDNN_POINTWISE_CMP_GT, .x = end, .b = &row, .computed_as = CUDNN_DATA_BOOLEAN},
      CUDNN_DATA_BOOLEAN, Nk_);
  return Apply({.mode = CUDNN_POINTWISE_BINARY_SELECT,
                .x = scores,
                .b = &parts_.Number(Uid::kLeftHidden, CUDNN_DATA_FLOAT),
                .t = &stays},
               CUDNN_DATA_FLOAT, Nk_);
}

const Descriptor& Operations::Scores(const Descriptor& queries, const Descriptor& transposed_keys,
                                     const Descriptor& scale) {
  const Descriptor& products = parts_.Virtual(CUDNN_DATA_FLOAT, Nk_);
  Multiply(queries, transposed_keys, products);
  return Apply({.mode = CUDNN_POINTWISE_MUL, .x = products, .b = &scale}, CUDNN_DATA_FLOAT, Nk_);
}

const Descriptor& Operations::Hide(const Descriptor& scores) {
  const DnnAttend& attend = parts_.attend();
  const Descriptor& left = attend.is_bounded_after ? HideRight(scores) : scores;
  return attend.is_bounded_before ? HideLeft(left) : left;
}

}  // namespace attnd::cuda::dnn
