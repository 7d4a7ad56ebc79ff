#include "cudnn_node.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace emu {
namespace {

// What may be set of a kind, and what must be.
struct Known {
  cudnnBackendDescriptorType_t kind;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  bool is_required;
  int64_t most = 1;
};

constexpr auto kTensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
constexpr auto kGraph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
constexpr auto kElementwise = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
constexpr auto kProduct = CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
constexpr auto kReduction = CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
constexpr auto kReshape = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
constexpr auto kPack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
constexpr auto kHeuristics = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
constexpr auto kPlan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
constexpr auto kDescriptor = CUDNN_TYPE_BACKEND_DESCRIPTOR;
constexpr int64_t kMany = 64;

constexpr Known kKnown[] = {
    {kTensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, true},
    {kTensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, true},
    {kTensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, true},
    {kTensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, true, 4},
    {kTensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, true, 4},
    {kTensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, false},
    {kTensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, false},
    {kGraph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, false},
    {kGraph, CUDNN_ATTR_OPERATIONGRAPH_OPS, kDescriptor, true, kMany},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE,
     true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
     true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, false},
    {kElementwise, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kDescriptor, true},
    {kElementwise, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kDescriptor, true},
    {kElementwise, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kDescriptor, false},
    {kElementwise, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, kDescriptor, false},
    {kElementwise, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kDescriptor, true},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, true},
    {kProduct, CUDNN_ATTR_OPERATION_MATMUL_DESC, kDescriptor, true},
    {kProduct, CUDNN_ATTR_OPERATION_MATMUL_ADESC, kDescriptor, true},
    {kProduct, CUDNN_ATTR_OPERATION_MATMUL_BDESC, kDescriptor, true},
    {kProduct, CUDNN_ATTR_OPERATION_MATMUL_CDESC, kDescriptor, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
     true},
    {kReduction, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kDescriptor, true},
    {kReduction, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kDescriptor, true},
    {kReduction, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kDescriptor, true},
    {kReshape, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kDescriptor, true},
    {kReshape, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kDescriptor, true},
    {kHeuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kDescriptor, true},
    {kHeuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, true},
    {kPlan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, true},
    {kPlan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kDescriptor, true},
    {kPack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, true, kMany},
    {kPack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, true, kMany},
    {kPack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, true},
};

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    default:
      return sizeof(int);
  }
}

using Sizes = std::vector<int64_t>;
Sizes DimsOf(const Node& tensor) { return tensor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS); }
Sizes StridesOf(const Node& tensor) { return tensor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES); }
bool FitsTensor(const Node& node) {
  const Sizes dims = DimsOf(node), strides = StridesOf(node);
  const auto is_positive = [](int64_t x) { return x > 0; };
  return dims.size() == 4 && strides.size() == 4 &&
         std::all_of(dims.begin(), dims.end(), is_positive) &&
         std::all_of(strides.begin(), strides.end(), is_positive);
}

// What the mode reads, and no more.
bool FitsElementwise(const Node& node) {
  const Node& how = node.At(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const auto mode = how.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  const bool reads_one = mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG ||
                         mode == CUDNN_POINTWISE_IDENTITY || mode == CUDNN_POINTWISE_GEN_INDEX;
  return node.Has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) == !reads_one &&
         node.Has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC) ==
             (mode == CUDNN_POINTWISE_BINARY_SELECT) &&
         how.Has(CUDNN_ATTR_POINTWISE_AXIS) == (mode == CUDNN_POINTWISE_GEN_INDEX);
}

// Heads of b may be shared by several of a.
bool FitsProduct(const Node& node) {
  const Sizes a = DimsOf(node.At(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
              b = DimsOf(node.At(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  return a[1] % b[1] == 0 && a[3] == b[2] &&
         DimsOf(node.At(CUDNN_ATTR_OPERATION_MATMUL_CDESC)) == Sizes{a[0], a[1], a[2], b[3]};
}

bool FitsReduction(const Node& node) {
  const Sizes x = DimsOf(node.At(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
  return DimsOf(node.At(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)) == Sizes{x[0], x[1], x[2], 1};
}

// The same elements seen with rows for columns.
bool FitsReshape(const Node& node) {
  const Node& x_of = node.At(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  const Node& y_of = node.At(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  Sizes dims = DimsOf(x_of), strides = StridesOf(x_of);
  std::swap(dims[2], dims[3]);
  std::swap(strides[2], strides[3]);
  return DimsOf(y_of) == dims && StridesOf(y_of) == strides;
}

}  // namespace

bool IsNumber(const Node& tensor, cudnnDataType_t type) {
  return tensor.Is(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && DimsOf(tensor) == Sizes{1, 1, 1, 1} &&
         tensor.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == type;
}

cudnnStatus_t SetAttribute(Node* node, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  const auto* const known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) {
    return k.kind == node->kind && k.name == name;
  });
  if (node->is_finalized || known == std::end(kKnown) || known->type != type || count < 1 ||
      count > known->most || elements == nullptr) {
    return kBadParam;
  }
  Node::Attribute attribute{type, {}, {}};
  if (type == kDescriptor) {
    for (int64_t i = 0; i < count; ++i) {
      const auto* const held = static_cast<Held* const*>(elements)[i];
      if (held == nullptr || !held->node->is_finalized) return kBadParam;
      attribute.nodes.push_back(held->node);
    }
  } else {
    const auto* const bytes = static_cast<const std::byte*>(elements);
    attribute.data.assign(bytes, bytes + static_cast<size_t>(count) * SizeOf(type));
  }
  node->attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Finalize(Node* node) {
  if (node->is_finalized) return kBadParam;
  bool is_known = false;
  for (const Known& known : kKnown) {
    if (known.kind != node->kind) continue;
    is_known = true;
    if (known.is_required && !node->Has(known.name)) return kBadParam;
  }
  const bool fits = node->kind == kTensor        ? FitsTensor(*node)
                    : node->kind == kElementwise ? FitsElementwise(*node)
                    : node->kind == kProduct     ? FitsProduct(*node)
                    : node->kind == kReduction   ? FitsReduction(*node)
                    : node->kind == kReshape     ? FitsReshape(*node)
                                                 : is_known;
  if (!fits) return kBadParam;
  node->is_finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace emu
