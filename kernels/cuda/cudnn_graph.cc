#include "kernels/cuda/cudnn_graph.h"

#include <utility>
#include <vector>

namespace attnd::cuda::dnn {
namespace {

// y = mode(x, b) of elements, or b where t is false.
struct Elementwise {
  cudnnPointwiseMode_t mode;
  const Descriptor& x;
  const Descriptor *b = nullptr, *t = nullptr;
  cudnnDataType_t computed_as = CUDNN_DATA_FLOAT;
  int64_t axis = 0;  // of an index
};

class Composition {
 public:
  explicit Composition(GraphParts& parts) : parts_(parts), Nk_(parts.attend().Nk) {}

  std::vector<const Descriptor*> Attend();

 private:
  void Finish(Descriptor* operation);
  void Multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c);
  const Descriptor& Reduce(cudnnReduceTensorOp_t by, const Descriptor& x);
  void Apply(const Elementwise& e, const Descriptor& y);
  const Descriptor& Apply(const Elementwise& e, cudnnDataType_t type, int64_t columns);
  const Descriptor& Index(const Descriptor& scores, int64_t axis);
  const Descriptor& HideRight(const Descriptor& scores);
  const Descriptor& HideLeft(const Descriptor& scores);

  GraphParts& parts_;
  const int64_t Nk_;
  std::vector<const Descriptor*> operations_;
};

void Composition::Multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c) {
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

// Of each row.
const Descriptor& Composition::Reduce(cudnnReduceTensorOp_t by, const Descriptor& x) {
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

void Composition::Apply(const Elementwise& e, const Descriptor& y) {
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

const Descriptor& Composition::Apply(const Elementwise& e, cudnnDataType_t type, int64_t columns) {
  const Descriptor& y = parts_.Virtual(type, columns);
  Apply(e, y);
  return y;
}

void Composition::Finish(Descriptor* operation) {
  operation->Finalize();
  operations_.push_back(operation);
}

const Descriptor& Composition::Index(const Descriptor& scores, int64_t axis) {
  return Apply({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = scores, .axis = axis}, CUDNN_DATA_INT32,
               Nk_);
}

// row + after >= column stays.
const Descriptor& Composition::HideRight(const Descriptor& scores) {
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
const Descriptor& Composition::HideLeft(const Descriptor& scores) {
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

std::vector<const Descriptor*> Composition::Attend() {
  const Descriptor& products = parts_.Virtual(CUDNN_DATA_FLOAT, Nk_);
  Multiply(parts_.Queries(), parts_.TransposedKeys(), products);
  const Descriptor* scores = &Apply({.mode = CUDNN_POINTWISE_MUL,
                                     .x = products,
                                     .b = &parts_.Number(Uid::kScale, CUDNN_DATA_FLOAT)},
                                    CUDNN_DATA_FLOAT, Nk_);
  if (parts_.attend().is_bounded_after) scores = &HideRight(*scores);
  if (parts_.attend().is_bounded_before) scores = &HideLeft(*scores);
  const Descriptor& most = Reduce(CUDNN_REDUCE_TENSOR_MAX, *scores);
  const Descriptor& exponents =
      Apply({.mode = CUDNN_POINTWISE_SUB, .x = *scores, .b = &most}, CUDNN_DATA_FLOAT, Nk_);
  const Descriptor& powers =
      Apply({.mode = CUDNN_POINTWISE_EXP, .x = exponents}, CUDNN_DATA_FLOAT, Nk_);
  const Descriptor& sum = Reduce(CUDNN_REDUCE_TENSOR_ADD, powers);
  const Descriptor& log = Apply({.mode = CUDNN_POINTWISE_LOG, .x = sum}, CUDNN_DATA_FLOAT, 1);
  Apply({.mode = CUDNN_POINTWISE_ADD, .x = most, .b = &log}, parts_.Lse());
  // Engines multiply values by weights of the same 16 bits.
  const Descriptor& weights =
      Apply({.mode = CUDNN_POINTWISE_DIV, .x = powers, .b = &sum}, parts_.rows_type(), Nk_);
  Multiply(weights, parts_.Values(), parts_.Out());
  return std::move(operations_);
}

}  // namespace

AttendGraph::AttendGraph(const Functions& functions, cudnnHandle_t handle, const DnnAttend& attend)
    : parts_(functions, attend), graph_(functions, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, Composition(parts_).Attend());
  graph_.Finalize();
}

}  // namespace attnd::cuda::dnn
