#include "cudnn_reader.h"

#include <algorithm>
#include <utility>

namespace emu {
namespace {

int64_t UidOf(const Node& tensor) { return tensor.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID); }
cudnnDataType_t TypeOf(const Node& tensor) {
  return tensor.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
}

const Node* MadeBy(const Nodes& operations, cudnnBackendDescriptorType_t kind,
                   cudnnBackendAttributeName_t y, const Node& result) {
  const auto found = std::find_if(operations.begin(), operations.end(), [&](const auto& operation) {
    return operation->kind == kind && IsSame(operation->At(y), result);
  });
  return found == operations.end() ? nullptr : found->get();
}

}  // namespace

const Node& X(const Node& elementwise) {
  return elementwise.At(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
}
const Node& B(const Node& elementwise) {
  return elementwise.At(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
}
bool IsSame(const Node& tensor, const Node& other) { return UidOf(tensor) == UidOf(other); }

const Node* GraphReader::IfFits(bool fits, const Node* operation) {
  if (!fits) return nullptr;
  used_.insert(operation);
  return operation;
}

const Node* GraphReader::ProductOf(const Node& result) {
  const Node* const made = MadeBy(operations_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
  if (made == nullptr) return nullptr;
  const Node& how = made->At(CUDNN_ATTR_OPERATION_MATMUL_DESC);
  return IfFits(how.One<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE) == CUDNN_DATA_FLOAT, made);
}

const Node* GraphReader::ReductionOf(const Node& result, cudnnReduceTensorOp_t by) {
  const Node* const made = MadeBy(operations_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
  if (made == nullptr) return nullptr;
  const Node& how = made->At(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  return IfFits(how.One<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == by &&
                    how.One<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
                    TypeOf(result) == CUDNN_DATA_FLOAT,
                made);
}

const Node* GraphReader::ElementwiseOf(const Node& result, cudnnPointwiseMode_t mode, Types types) {
  const Node* const made = MadeBy(operations_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
  if (made == nullptr) return nullptr;
  const Node& how = made->At(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  return IfFits(how.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == mode &&
                    how.One<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) == types.computed_as &&
                    TypeOf(result) == types.result,
                made);
}

const Node* GraphReader::TransposeOf(const Node& result, cudnnDataType_t type) {
  const Node* const made = MadeBy(operations_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
  return made == nullptr ? nullptr : IfFits(TypeOf(result) == type, made);
}

const Node* GraphReader::ProductOfTransposed(const Node& tensor, cudnnDataType_t type) {
  for (const auto& operation : operations_) {
    if (operation->kind != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
    const Node* const transpose =
        TransposeOf(operation->At(CUDNN_ATTR_OPERATION_MATMUL_ADESC), type);
    if (transpose == nullptr ||
        !IsSame(transpose->At(CUDNN_ATTR_OPERATION_RESHAPE_XDESC), tensor)) {
      continue;
    }
    return ProductOf(operation->At(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  }
  return nullptr;
}

bool GraphReader::IsIndex(const Node& tensor, const Node& scores, int64_t axis) {
  const Node* const index =
      ElementwiseOf(tensor, CUDNN_POINTWISE_GEN_INDEX, {.result = CUDNN_DATA_INT32});
  return index != nullptr && IsSame(X(*index), scores) &&
         index->At(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                 .One<int64_t>(CUDNN_ATTR_POINTWISE_AXIS) == axis;
}

// row + after >= column, or column + before > row.
bool GraphReader::ReadMask(const Node& select, DnnMask* mask) {
  constexpr Types kBoolean = {CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN};
  const Node &scores = X(select), &stays = select.At(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  const Node* const right = ElementwiseOf(stays, CUDNN_POINTWISE_CMP_GE, kBoolean);
  const Node* const left = ElementwiseOf(stays, CUDNN_POINTWISE_CMP_GT, kBoolean);
  if (left == nullptr && right == nullptr) return false;
  mask->is_left = left != nullptr;
  const Node& comparison = mask->is_left ? *left : *right;
  const cudnnDataType_t type = mask->is_left ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32;
  const Node* const sum = ElementwiseOf(X(comparison), CUDNN_POINTWISE_ADD, {type, type});
  if (sum == nullptr || !IsNumber(B(*sum), type) || !IsNumber(B(select), CUDNN_DATA_FLOAT)) {
    return false;
  }
  mask->bound = NumberOf(B(*sum));
  mask->hidden = NumberOf(B(select));
  return IsIndex(X(*sum), scores, mask->is_left ? 3 : 2) &&
         IsIndex(B(comparison), scores, mask->is_left ? 2 : 3);
}

const Node* GraphReader::ReadMasks(const Node& hidden, DnnAttention* a) {
  const Node* scores = &hidden;
  while (const Node* const select = ElementwiseOf(*scores, CUDNN_POINTWISE_BINARY_SELECT)) {
    if (!ReadMask(*select, &a->masks.emplace_back())) return nullptr;
    scores = &X(*select);
  }
  return scores;
}

bool GraphReader::ReadTransposed(const Node& product, cudnnBackendAttributeName_t name,
                                 DnnTensor* tensor) {
  *tensor = TensorOf(product.At(name));
  std::swap(tensor->dims[2], tensor->dims[3]);
  std::swap(tensor->strides[2], tensor->strides[3]);
  return !product.At(name).Is(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

bool GraphReader::ReadScores(const Node& scores, DnnAttention* a) {
  const Node* const scaling = ElementwiseOf(scores, CUDNN_POINTWISE_MUL);
  const Node* const product = scaling == nullptr ? nullptr : ProductOf(X(*scaling));
  if (product == nullptr || !IsNumber(B(*scaling), CUDNN_DATA_FLOAT)) return false;
  a->scale = NumberOf(B(*scaling));
  a->q = TensorOf(product->At(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
  return ReadTransposed(*product, CUDNN_ATTR_OPERATION_MATMUL_BDESC, &a->k);
}

bool GraphReader::ReadLse(const Node& most, const Node& sum, DnnTensor* lse) {
  for (const auto& operation : operations_) {
    if (operation->kind != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) continue;
    const Node& y = operation->At(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    if (y.Is(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) continue;
    const Node* const add = ElementwiseOf(y, CUDNN_POINTWISE_ADD);
    const Node* const log = add == nullptr ? nullptr : ElementwiseOf(B(*add), CUDNN_POINTWISE_LOG);
    *lse = TensorOf(y);
    return log != nullptr && IsSame(X(*add), most) && IsSame(X(*log), sum);
  }
  return false;
}

bool GraphReader::ReadForward(DnnAttention* a) {
  const Node& last = *operations_.back();
  if (last.kind != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) return false;
  const Node &out = last.At(CUDNN_ATTR_OPERATION_MATMUL_CDESC),
             &weights = last.At(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  a->out = TensorOf(out);
  a->v = TensorOf(last.At(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  const Node* const division = ElementwiseOf(weights, CUDNN_POINTWISE_DIV, {.result = a->v.type});
  if (ProductOf(out) == nullptr || division == nullptr) return false;
  const Node &powers = X(*division), &sum = B(*division);
  const Node* const addition = ReductionOf(sum, CUDNN_REDUCE_TENSOR_ADD);
  const Node* const exp = ElementwiseOf(powers, CUDNN_POINTWISE_EXP);
  const Node* const difference =
      exp == nullptr ? nullptr : ElementwiseOf(X(*exp), CUDNN_POINTWISE_SUB);
  if (addition == nullptr || difference == nullptr) return false;
  const Node &most = B(*difference), &hidden = X(*difference);
  const Node* const largest = ReductionOf(most, CUDNN_REDUCE_TENSOR_MAX);
  if (largest == nullptr || !IsSame(largest->At(CUDNN_ATTR_OPERATION_REDUCTION_XDESC), hidden) ||
      !IsSame(addition->At(CUDNN_ATTR_OPERATION_REDUCTION_XDESC), powers) ||
      !ReadLse(most, sum, &a->lse)) {
    return false;
  }
  const Node* const scores = ReadMasks(hidden, a);
  return scores != nullptr && ReadScores(*scores, a) && used_.size() == operations_.size();
}

}  // namespace emu
