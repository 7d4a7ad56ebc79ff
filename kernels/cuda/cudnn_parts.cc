#include "kernels/cuda/cudnn_parts.h"

#include <algorithm>
#include <array>
#include <utility>

namespace attnd::cuda::dnn {

struct GraphParts::Tensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> dims = {1, 1, 1, 1}, strides = {1, 1, 1, 1};
  int64_t alignment = 4;
  bool is_virtual = false, is_by_value = false;
};

Descriptor& GraphParts::New(cudnnBackendDescriptorType_t type) {
  return *parts_.emplace_back(std::make_unique<Descriptor>(functions_, type));
}

cudnnDataType_t GraphParts::rows_type() const {
  return attend_.dtype == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

const Descriptor& GraphParts::NewTensor(const Tensor& of) {
  Descriptor& tensor = New(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, of.id);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &of.type);
  tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, of.alignment);
  tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, of.dims.data());
  tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, of.strides.data());
  tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &of.is_virtual);
  tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &of.is_by_value);
  tensor.Finalize();
  return tensor;
}

GraphParts::Tensor GraphParts::RowsOf(Uid uid, int64_t H, int64_t N, int64_t D,
                                      const DnnRows& rows) const {
  return {.id = static_cast<int64_t>(uid),
          .type = rows_type(),
          .dims = {1, H, N, D},
          .strides = {std::max(H * rows.head, N * rows.row), rows.head, rows.row, 1},
          .alignment = Cudnn::kAlign};
}

const Descriptor& GraphParts::NewTransposed(Tensor tensor) {
  std::swap(tensor.dims[2], tensor.dims[3]);
  std::swap(tensor.strides[2], tensor.strides[3]);
  return NewTensor(tensor);
}

GraphParts::Tensor GraphParts::FloatsOf(Uid uid, int64_t columns, int64_t head) const {
  return {.id = static_cast<int64_t>(uid),
          .dims = {1, attend_.H, attend_.Nq, columns},
          .strides = {attend_.H * head, head, columns, 1},
          .alignment = columns == 1 ? 4 : Cudnn::kAlign};
}

GraphParts::Tensor GraphParts::VirtualOf(cudnnDataType_t type, int64_t columns) {
  const int64_t H = attend_.H, Nq = attend_.Nq;
  return {.id = ++last_id_,
          .type = type,
          .dims = {1, H, Nq, columns},
          .strides = {H * Nq * columns, Nq * columns, columns, 1},
          .alignment = Cudnn::kAlign,
          .is_virtual = true};
}

const Descriptor& GraphParts::Queries() {
  return NewTensor(RowsOf(Uid::kQ, attend_.H, attend_.Nq, attend_.D, attend_.q));
}

const Descriptor& GraphParts::TransposedKeys() {
  return NewTransposed(RowsOf(Uid::kK, attend_.Hkv, attend_.Nk, attend_.D, attend_.k));
}

const Descriptor& GraphParts::Values() {
  return NewTensor(RowsOf(Uid::kV, attend_.Hkv, attend_.Nk, attend_.Dv, attend_.v));
}

const Descriptor& GraphParts::TransposedValues() {
  return NewTransposed(RowsOf(Uid::kV, attend_.Hkv, attend_.Nk, attend_.Dv, attend_.v));
}

const Descriptor& GraphParts::Out() {
  return NewTensor(RowsOf(Uid::kOut, attend_.H, attend_.Nq, attend_.Dv, attend_.out));
}

const Descriptor& GraphParts::Lse() { return NewTensor(FloatsOf(Uid::kLse, 1, attend_.lse_head)); }

const Descriptor& GraphParts::OutGradient() {
  return NewTensor(RowsOf(Uid::kDout, attend_.H, attend_.Nq, attend_.Dv, attend_.dout));
}

const Descriptor& GraphParts::QueryGradient() {
  return NewTensor(RowsOf(Uid::kDq, attend_.H, attend_.Nq, attend_.D, attend_.dq));
}

const Descriptor& GraphParts::KeyGradient() {
  return NewTensor(RowsOf(Uid::kDk, attend_.Hkv, attend_.Nk, attend_.D, attend_.dk));
}

const Descriptor& GraphParts::ValueGradient() {
  return NewTensor(RowsOf(Uid::kDv, attend_.Hkv, attend_.Nk, attend_.Dv, attend_.dv));
}

const Descriptor& GraphParts::Shift() { return NewTensor(FloatsOf(Uid::kShift, 1, attend_.Nq)); }

const Descriptor& GraphParts::QueryGradientSums() {
  return NewTensor(FloatsOf(Uid::kDqSums, attend_.D, attend_.Nq * attend_.D));
}

const Descriptor& GraphParts::Number(Uid uid, cudnnDataType_t type) {
  return NewTensor({.id = static_cast<int64_t>(uid), .type = type, .is_by_value = true});
}

const Descriptor& GraphParts::Virtual(cudnnDataType_t type, int64_t columns) {
  return NewTensor(VirtualOf(type, columns));
}

const Descriptor& GraphParts::Transposed(cudnnDataType_t type) {
  return NewTransposed(VirtualOf(type, attend_.Nk));
}

const Descriptor& GraphParts::Keys(cudnnDataType_t type) {
  Tensor keys = RowsOf(Uid::kK, attend_.Hkv, attend_.Nk, attend_.D, attend_.k);
  keys.id = ++last_id_;
  keys.type = type;
  keys.is_virtual = true;
  return NewTensor(keys);
}

}  // namespace attnd::cuda::dnn
