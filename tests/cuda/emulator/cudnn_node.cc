#include "cudnn_node.h"

#include <algorithm>
#include <cstring>

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
constexpr auto kAttend = CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR;
constexpr auto kMask = CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR;
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
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, kDescriptor, true},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, kDescriptor, true},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, kDescriptor, true},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, kDescriptor, true},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, kDescriptor, true},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, kDescriptor, true},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, kDescriptor, false},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, CUDNN_TYPE_INT64, false},
    {kAttend, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, CUDNN_TYPE_INT64, false},
    {kMask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, kDescriptor, true},
    {kMask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, kDescriptor, true},
    {kMask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, kDescriptor, true},
    {kMask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, kDescriptor, false},
    {kMask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC, kDescriptor, false},
    {kMask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE,
     true},
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
cudnnDataType_t TypeOf(const Node& tensor) {
  return tensor.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
}
bool IsNumber(const Node& tensor) {
  return tensor.Has(CUDNN_ATTR_TENSOR_IS_BY_VALUE) &&
         tensor.One<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && DimsOf(tensor) == Sizes{1, 1, 1, 1};
}

bool FitsTensor(const Node& node) {
  const Sizes dims = DimsOf(node), strides = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  const auto is_positive = [](int64_t x) { return x > 0; };
  return dims.size() == 4 && strides.size() == 4 &&
         std::all_of(dims.begin(), dims.end(), is_positive) &&
         std::all_of(strides.begin(), strides.end(), is_positive);
}

bool FitsMask(const Node& node) {
  const bool is_left = node.Has(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
  const bool is_right = node.Has(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC);
  if (is_left == is_right) return false;
  const Node& bound =
      node.At(is_left ? CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC
                      : CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC);
  const Node& hidden = node.At(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC);
  const auto mode =
      node.One<cudnnPointwiseMode_t>(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE);
  return mode == (is_left ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE) && IsNumber(bound) &&
         TypeOf(bound) == (is_left ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32) && IsNumber(hidden) &&
         TypeOf(hidden) == CUDNN_DATA_FLOAT &&
         DimsOf(node.At(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC)) ==
             DimsOf(node.At(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC));
}

bool FitsAttend(const Node& node) {
  const Node &q = node.At(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC),
             &k = node.At(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC),
             &v = node.At(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC),
             &out = node.At(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC),
             &lse = node.At(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC);
  const Sizes qs = DimsOf(q), ks = DimsOf(k), vs = DimsOf(v);
  const bool fits =
      ks[0] == qs[0] && ks[3] == qs[3] && qs[1] % ks[1] == 0 &&
      vs == Sizes{ks[0], ks[1], ks[2], vs[3]} && DimsOf(out) == Sizes{qs[0], qs[1], qs[2], vs[3]} &&
      DimsOf(lse) == Sizes{qs[0], qs[1], qs[2], 1} && TypeOf(lse) == CUDNN_DATA_FLOAT &&
      TypeOf(k) == TypeOf(q) && TypeOf(v) == TypeOf(q) && TypeOf(out) == TypeOf(q) &&
      IsNumber(node.At(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC));
  const bool has_masks = node.Has(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH);
  return fits && has_masks == node.Has(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID) &&
         has_masks == node.Has(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID);
}

}  // namespace

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
  const bool fits = node->kind == kTensor   ? FitsTensor(*node)
                    : node->kind == kMask   ? FitsMask(*node)
                    : node->kind == kAttend ? FitsAttend(*node)
                                            : is_known;
  if (!fits) return kBadParam;
  node->is_finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace emu
