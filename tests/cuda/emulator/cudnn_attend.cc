#include "cudnn_attend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cudnn_reader.h"
#include "cudnn_sums.h"

namespace emu {
namespace {

// As engines of NVIDIA's do: rows of 16 bytes, one sequence of what is computed plainly.
bool IsOfRows(const DnnTensor& tensor) {
  return tensor.dims[0] == 1 && tensor.dims[3] % 8 == 0 && tensor.dims[3] <= 256 &&
         tensor.strides[3] == 1 && tensor.strides[1] % 8 == 0 && tensor.strides[2] % 8 == 0 &&
         tensor.type != CUDNN_DATA_FLOAT;
}

bool Fits(const DnnAttention& a) {
  using Sizes = std::vector<int64_t>;
  const Sizes &q = a.q.dims, &k = a.k.dims, &v = a.v.dims;
  for (const auto& [tensor, of] :
       {std::pair{&a.dout, &a.out}, {&a.dq, &a.q}, {&a.dk, &a.k}, {&a.dv, &a.v}}) {
    if (!a.is_gradient) break;
    if (!IsOfRows(*tensor) || tensor->dims != of->dims || tensor->type != a.q.type) return false;
  }
  if (a.is_gradient &&
      (q[1] != k[1] || a.shift.dims != a.lse.dims || a.shift.type != CUDNN_DATA_FLOAT ||
       a.dq_sums.dims != q || a.dq_sums.type != CUDNN_DATA_FLOAT)) {
    return false;
  }
  return IsOfRows(a.q) && IsOfRows(a.k) && IsOfRows(a.v) && IsOfRows(a.out) && k[3] == q[3] &&
         q[1] % k[1] == 0 && v == Sizes{1, k[1], k[2], v[3]} &&
         a.out.dims == Sizes{1, q[1], q[2], v[3]} && a.lse.dims == Sizes{1, q[1], q[2], 1} &&
         a.lse.type == CUDNN_DATA_FLOAT && a.k.type == a.q.type && a.v.type == a.q.type &&
         a.out.type == a.q.type;
}

}  // namespace

DnnTensor TensorOf(const Node& node) {
  return {.uid = node.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
          .type = node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
          .alignment = node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
          .dims = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
          .strides = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)};
}

DnnNumber NumberOf(const Node& node) {
  return {.uid = node.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
          .type = node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)};
}

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

std::vector<std::pair<const char*, DnnTensor*>> DnnAttention::Tensors() {
  std::vector<std::pair<const char*, DnnTensor*>> all = {
      {"Q", &q}, {"K", &k}, {"V", &v}, {"O", &out}, {"the statistics", &lse}};
  if (!is_gradient) return all;
  all.insert(all.end(), {{"dO", &dout},
                         {"dQ", &dq},
                         {"dK", &dk},
                         {"dV", &dv},
                         {"the sums of rows", &shift},
                         {"the sums of dQ", &dq_sums}});
  return all;
}

std::pair<int64_t, int64_t> DnnAttention::KeysOf(int64_t i) const {
  int64_t begin = 0, end = k.dims[2];
  for (const DnnMask& mask : masks) {
    const auto bound = static_cast<int64_t>(mask.bound.value);
    if (mask.is_left) {
      begin = std::clamp<int64_t>(i - bound + 1, begin, k.dims[2]);
    } else {
      end = std::clamp<int64_t>(i + bound + 1, 0, end);
    }
  }
  return {begin, end};
}

void DnnAttention::Run() const {
  if (is_gradient) return RunGradient();
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
      const auto [begin, end] = KeysOf(i);
      std::fill(scores.begin(), scores.end(), 0.0);
      for (int64_t d = 0; d < D && begin < end; ++d) {
        AddTo<double>(static_cast<size_t>(end - begin), q.Load(h, i, d),
                      keys.data() + d * Nk + begin, scores.data() + begin);
      }
      double largest = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t j = begin; j < end; ++j) {
        largest = std::max(largest, scores[static_cast<size_t>(j)] *= scale.value);
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
  auto a = std::make_unique<DnnAttention>();
  const Nodes& operations = graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
  const bool is_gradient = operations.back()->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
  GraphReader reader(operations);
  const bool is_read = is_gradient ? reader.ReadGradient(a.get()) : reader.ReadForward(a.get());
  return is_read && Fits(*a) ? std::move(a) : nullptr;
}

bool Bind(const std::map<int64_t, void*>& data, DnnAttention* a) {
  size_t used = 0;
  const auto find = [&](int64_t uid) {
    const auto found = data.find(uid);
    used += found != data.end() && found->second != nullptr;
    return found == data.end() ? nullptr : found->second;
  };
  const auto tensors = a->Tensors();
  for (const auto& [what, tensor] : tensors) tensor->data = find(tensor->uid);
  std::vector<DnnNumber*> numbers = {&a->scale};
  if (a->is_gradient) numbers.push_back(&a->one);
  for (DnnMask& mask : a->masks) numbers.insert(numbers.end(), {&mask.bound, &mask.hidden});
  for (DnnNumber* number : numbers) {
    const void* const value = find(number->uid);
    if (value == nullptr) return false;
    number->value = number->type == CUDNN_DATA_INT32
                        ? static_cast<double>(*static_cast<const int32_t*>(value))
                        : static_cast<double>(*static_cast<const float*>(value));
  }
  return used == tensors.size() + numbers.size() && used == data.size() &&
         (!a->is_gradient || a->one.value == 1) &&
         std::all_of(a->masks.begin(), a->masks.end(), [](const DnnMask& mask) {
           return mask.hidden.value == -std::numeric_limits<double>::infinity();
         });
}

}  // namespace emu
