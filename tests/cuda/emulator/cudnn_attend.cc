#include "cudnn_attend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace emu {
namespace {

DnnTensor TensorOf(const Node& node) {
  return {.uid = node.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
          .type = node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
          .alignment = node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
          .dims = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
          .strides = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)};
}
int64_t UidOf(const Node& tensor) { return tensor.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID); }

// The masks of a graph, in order; empty with *fits false: they do not lead from the input to the
// output.
std::vector<const Node*> MasksOf(const Node& attend, bool* fits) {
  std::vector<const Node*> masks;
  *fits = true;
  if (!attend.Has(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH)) return masks;
  const Node& graph = attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH);
  int64_t at = attend.One<int64_t>(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID);
  for (const auto& node : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    if (node->kind != CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR ||
        UidOf(node->At(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC)) != at) {
      *fits = false;
      return {};
    }
    at = UidOf(node->At(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC));
    masks.push_back(node.get());
  }
  *fits = at == attend.One<int64_t>(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID);
  return masks;
}

// The hot loop: minutes under a sanitizer, whose business it is not.
template <class T>
__attribute__((optimize("O3"), no_sanitize("address", "undefined", "thread"))) void AddTo(
    size_t n, T factor, const T* __restrict row, T* __restrict sums) {
  for (size_t i = 0; i < n; ++i) sums[i] += factor * row[i];
}

}  // namespace

size_t DnnTensor::bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < 4; ++i) last += (dims[i] - 1) * strides[i];
  return static_cast<size_t>(last + 1) * (type == CUDNN_DATA_FLOAT ? 4 : 2);
}

float DnnTensor::Load(int64_t h, int64_t n, int64_t d) const {
  const int64_t at = h * strides[1] + n * strides[2] + d * strides[3];
  return type == CUDNN_DATA_HALF ? __half2float(static_cast<const __half*>(data)[at])
                                 : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

void DnnTensor::Store(int64_t h, int64_t n, int64_t d, float value) const {
  const int64_t at = h * strides[1] + n * strides[2] + d * strides[3];
  if (type == CUDNN_DATA_HALF) {
    static_cast<__half*>(data)[at] = __float2half_rn(value);
  } else if (type == CUDNN_DATA_BFLOAT16) {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(data)[at] = value;
  }
}

uint64_t HashOf(const DnnAttention& a) {
  uint64_t hash = 0;
  for (const DnnTensor* tensor : {&a.q, &a.k, &a.v}) {
    for (const int64_t dim : tensor->dims) {
      hash = (hash ^ static_cast<uint64_t>(dim)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

void DnnAttention::Run() const {
  const int64_t H = q.dims[1], group = H / k.dims[1], Nq = q.dims[2], Nk = k.dims[2], D = q.dims[3],
                Dv = v.dims[3];
  const auto columns = static_cast<size_t>(Nk), width = static_cast<size_t>(Dv);
  const int64_t block = splits ? 16 : int64_t{32} << HashOf(*this) % 4;
  std::vector<double> keys(static_cast<size_t>(D) * columns), scores(columns);  // [D][Nk]
  std::vector<float> values(columns * width), sums(width), of_block(width);
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t j = 0; j < Nk; ++j) {
      for (int64_t d = 0; d < D; ++d) {
        keys[static_cast<size_t>(d) * columns + static_cast<size_t>(j)] = k.Load(h / group, j, d);
      }
      for (int64_t d = 0; d < Dv; ++d) {
        values[static_cast<size_t>(j * Dv + d)] = v.Load(h / group, j, d);
      }
    }
    for (int64_t i = 0; i < Nq; ++i) {
      const double row = static_cast<double>(i), last = static_cast<double>(Nk);
      const auto begin =
          static_cast<int64_t>(is_bounded_before ? std::clamp(row - before + 1, 0.0, last) : 0.0);
      const auto end =
          static_cast<int64_t>(is_bounded_after ? std::clamp(row + after + 1, 0.0, last) : last);
      std::fill(scores.begin(), scores.end(), 0.0);
      for (int64_t d = 0; d < D && begin < end; ++d) {
        AddTo<double>(static_cast<size_t>(end - begin), q.Load(h, i, d),
                      keys.data() + d * Nk + begin, scores.data() + begin);
      }
      double largest = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t j = begin; j < end; ++j) {
        largest = std::max(largest, scores[static_cast<size_t>(j)] *= scale);
      }
      std::fill(sums.begin(), sums.end(), 0.0f);
      const int64_t blocks = (Nk + block - 1) / block;
      for (int64_t n = 0; n < blocks; ++n) {
        const int64_t first = n * block;
        std::fill(of_block.begin(), of_block.end(), 0.0f);
        const int64_t next = std::min(first + block, Nk);
        if (next <= begin || end <= first) continue;
        for (int64_t j = first; j < next; ++j) {
          const bool is_visible = begin <= j && j < end;
          if (!is_visible && !spreads) continue;
          const double weight = is_visible ? std::exp(scores[static_cast<size_t>(j)] - largest) : 0;
          total += weight;
          AddTo(width, static_cast<float>(weight), values.data() + j * Dv, of_block.data());
        }
        AddTo(width, 1.0f, of_block.data(), sums.data());
      }
      // A row without a key is NaN, as 0 / 0: what a device does there is not known.
      for (int64_t d = 0; d < Dv; ++d) {
        out.Store(h, i, d, sums[static_cast<size_t>(d)] / static_cast<float>(total));
      }
      lse.Store(h, i, 0, static_cast<float>(largest + std::log(total)));
    }
  }
  if (is_wrong) out.Store(H - 1, Nq / 2, Dv - 1, out.Load(H - 1, Nq / 2, Dv - 1) + 1);
}

std::unique_ptr<DnnAttention> AttentionOf(const Node& graph) {
  const auto& operations = graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
  if (operations.size() != 1 ||
      operations[0]->kind != CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR) {
    return nullptr;
  }
  const Node& attend = *operations[0];
  bool fits = false;
  const std::vector<const Node*> masks = MasksOf(attend, &fits);
  if (!fits) return nullptr;
  auto a = std::make_unique<DnnAttention>();
  a->q = TensorOf(attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC));
  a->k = TensorOf(attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC));
  a->v = TensorOf(attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC));
  a->out = TensorOf(attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC));
  a->lse = TensorOf(attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC));
  for (const Node* mask : masks) {
    const bool is_left = mask->Has(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
    (is_left ? a->is_bounded_before : a->is_bounded_after) = true;
  }
  // As engines of NVIDIA's do: rows of 16 bytes, one sequence of what is computed plainly.
  for (const DnnTensor* tensor : {&a->q, &a->k, &a->v, &a->out}) {
    fits &= tensor->dims[0] == 1 && tensor->dims[3] % 8 == 0 && tensor->dims[3] <= 256 &&
            tensor->strides[3] == 1 && tensor->strides[1] % 8 == 0 && tensor->strides[2] % 8 == 0 &&
            tensor->type != CUDNN_DATA_FLOAT;
  }
  return fits ? std::move(a) : nullptr;
}

bool Bind(const Node& graph, const std::map<int64_t, void*>& data, DnnAttention* a) {
  const Node& attend = *graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes[0];
  size_t used = 0;
  const auto find = [&](int64_t uid) -> void* {
    const auto found = data.find(uid);
    if (found == data.end() || found->second == nullptr) return nullptr;
    ++used;
    return found->second;
  };
  bool fits = true;
  for (DnnTensor* tensor : {&a->q, &a->k, &a->v, &a->out, &a->lse}) {
    tensor->data = find(tensor->uid);
    fits &= tensor->data != nullptr;
  }
  const auto number = [&](const Node& tensor) {
    const void* const value = find(UidOf(tensor));
    if (value == nullptr) {
      fits = false;
      return 0.0;
    }
    return TensorOf(tensor).type == CUDNN_DATA_INT32
               ? static_cast<double>(*static_cast<const int32_t*>(value))
               : static_cast<double>(*static_cast<const float*>(value));
  };
  a->scale = static_cast<float>(number(attend.At(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC)));
  bool is_chain = false;
  for (const Node* mask : MasksOf(attend, &is_chain)) {
    const bool is_left = mask->Has(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
    (is_left ? a->before : a->after) =
        number(mask->At(is_left ? CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC
                                : CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC));
    const double hidden = number(mask->At(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC));
    fits &= hidden == -std::numeric_limits<double>::infinity();
  }
  return fits && used == data.size();
}

}  // namespace emu
