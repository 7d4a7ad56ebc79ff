#include "kernels/cuda/cudnn_graph.h"

#include "kernels/cuda/cudnn_operations.h"

namespace attnd::cuda::dnn {
namespace {

void Attend(GraphParts& parts, Operations& operations) {
  const int64_t Nk = parts.attend().Nk;
  const Descriptor& scores = operations.Hide(operations.Scores(
      parts.Queries(), parts.TransposedKeys(), parts.Number(Uid::kScale, CUDNN_DATA_FLOAT)));
  const Descriptor& most = operations.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const Descriptor& exponents = operations.Apply(
      {.mode = CUDNN_POINTWISE_SUB, .x = scores, .b = &most}, CUDNN_DATA_FLOAT, Nk);
  const Descriptor& powers =
      operations.Apply({.mode = CUDNN_POINTWISE_EXP, .x = exponents}, CUDNN_DATA_FLOAT, Nk);
  const Descriptor& sum = operations.Reduce(CUDNN_REDUCE_TENSOR_ADD, powers);
  const Descriptor& log =
      operations.Apply({.mode = CUDNN_POINTWISE_LOG, .x = sum}, CUDNN_DATA_FLOAT, 1);
  operations.Apply({.mode = CUDNN_POINTWISE_ADD, .x = most, .b = &log}, parts.Lse());
  // Engines multiply values by weights of the same 16 bits.
  const Descriptor& weights = operations.Apply(
      {.mode = CUDNN_POINTWISE_DIV, .x = powers, .b = &sum}, parts.rows_type(), Nk);
  operations.Multiply(weights, parts.Values(), parts.Out());
}

// P = exp(S - lse); dS = scale P (dout v^T - dout . out); dv = P^T dout, dk = dS^T q, dq = dS k.
void AttendGradient(GraphParts& parts, Operations& operations) {
  const int64_t Nk = parts.attend().Nk, Dv = parts.attend().Dv;
  const Descriptor &q = parts.Queries(), &transposed_k = parts.TransposedKeys(),
                   &dout = parts.OutGradient(),
                   &scale = parts.Number(Uid::kScale, CUDNN_DATA_FLOAT);
  const auto with = [&](cudnnPointwiseMode_t mode, const Descriptor& x,
                        const Descriptor& b) -> const Descriptor& {
    return operations.Apply({.mode = mode, .x = x, .b = &b}, CUDNN_DATA_FLOAT, Nk);
  };
  const Descriptor& shares = operations.Apply(
      {.mode = CUDNN_POINTWISE_MUL, .x = dout, .b = &parts.Out()}, CUDNN_DATA_FLOAT, Dv);
  // Engines know the shift of rows as a sum times a number, in memory.
  const Descriptor &sum = operations.Reduce(CUDNN_REDUCE_TENSOR_ADD, shares),
                   &shift = parts.Shift();
  operations.Apply(
      {.mode = CUDNN_POINTWISE_MUL, .x = sum, .b = &parts.Number(Uid::kOne, CUDNN_DATA_FLOAT)},
      shift);
  const Descriptor& exponents = operations.Hide(
      with(CUDNN_POINTWISE_SUB, operations.Scores(q, transposed_k, scale), parts.Lse()));
  const Descriptor& weights =
      operations.Apply({.mode = CUDNN_POINTWISE_EXP, .x = exponents}, CUDNN_DATA_FLOAT, Nk);
  operations.Multiply(operations.Transpose(weights, parts.Transposed(parts.rows_type())), dout,
                      parts.ValueGradient());
  const Descriptor& products = parts.Virtual(CUDNN_DATA_FLOAT, Nk);
  operations.Multiply(dout, parts.TransposedValues(), products);
  const Descriptor& scores =
      with(CUDNN_POINTWISE_MUL,
           with(CUDNN_POINTWISE_MUL, with(CUDNN_POINTWISE_SUB, products, shift), weights), scale);
  operations.Multiply(operations.Transpose(scores, parts.Transposed(parts.rows_type())), q,
                      parts.KeyGradient());
  const Descriptor& sums = parts.QueryGradientSums();
  operations.Multiply(scores, operations.Transpose(transposed_k, parts.Keys(CUDNN_DATA_FLOAT)),
                      sums);
  operations.Apply({.mode = CUDNN_POINTWISE_IDENTITY, .x = sums}, parts.QueryGradient());
}

}  // namespace

AttendGraph::AttendGraph(const Functions& functions, cudnnHandle_t handle, const DnnAttend& attend)
    : parts_(functions, attend), graph_(functions, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  Operations operations(parts_);
  if (attend.is_gradient) {
    AttendGradient(parts_, operations);
  } else {
    Attend(parts_, operations);
  }
  graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations.list());
  graph_.Finalize();
}

}  // namespace attnd::cuda::dnn
