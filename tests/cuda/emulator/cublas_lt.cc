// Descriptors are checked and interpreted, and products computed plainly when the stream runs them.
// Sums are float32, of blocks of k that differ between products of different shapes: a caller that
// lets the algorithm depend on the batch gets other bits, as on a device. What misuses the library
// aborts.
#include "cublas_lt.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "device_memory.h"
#include "kernels/cuda/cublas_lt_api.h"
#include "libraries.h"
#include "options.h"
#include "streams.h"

namespace emu {
namespace {

using namespace attnd::cuda::lt;

// Of NVIDIA's values that only the stand-in returns.
constexpr auto kNotInitialized = static_cast<cublasStatus_t>(1),
               kInvalid = static_cast<cublasStatus_t>(7),
               kExecutionFailed = static_cast<cublasStatus_t>(13),
               kNotSupported = static_cast<cublasStatus_t>(15);
constexpr uint32_t kComputeType = 2;  // a reduction scheme

CublasLt FromEnvironment() {
  const char* const text = std::getenv("EMULATED_CUBLASLT");
  const std::string_view how = text == nullptr ? "" : text;
  return how == "absent"         ? CublasLt::kAbsent
         : how == "no-handle"    ? CublasLt::kNoHandle
         : how == "no-algorithm" ? CublasLt::kNoAlgorithm
         : how == "fails"        ? CublasLt::kFails
         : how == "wrong"        ? CublasLt::kWrong
                                 : CublasLt::kRight;
}

struct Desc {
  bool transposes_a = false, transposes_b = false;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t pitch;

  size_t size() const { return type == CUDA_R_32F ? 4 : 2; }
  size_t bytes() const { return (static_cast<size_t>(pitch) * (columns - 1) + rows) * size(); }
};
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};
};
// An algorithm knows what it is for.
struct Algorithm {
  uint64_t shape;  // ShapeOf
  uint64_t workspace_bytes;
  uint64_t alignment;
  uint64_t splits;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

Algorithm AlgorithmOf(const cublasLtMatmulAlgo_t& algo) {
  Algorithm a;
  std::memcpy(&a, &algo, sizeof(a));
  return a;
}

uint64_t ShapeOf(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  uint64_t hash = desc.transposes_a * 2u + desc.transposes_b;
  for (const Layout* layout : {&a, &b, &d}) {
    for (uint64_t value : {uint64_t{layout->type}, layout->rows, layout->columns,
                           static_cast<uint64_t>(layout->pitch)}) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

float Load(const Layout& layout, const void* data, size_t at) {
  switch (layout.type) {
    case CUDA_R_16F:
      return __half2float(static_cast<const __half*>(data)[at]);
    case CUDA_R_16BF:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

void Store(const Layout& layout, void* data, size_t at, float value) {
  switch (layout.type) {
    case CUDA_R_16F:
      static_cast<__half*>(data)[at] = __float2half_rn(value);
      return;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
      return;
    default:
      static_cast<float*>(data)[at] = value;
  }
}

// op(matrix) as float32, column after column of its first dimension.
std::vector<float> Read(const Layout& layout, const void* data, bool transposes) {
  std::vector<float> values(layout.rows * layout.columns);
  for (size_t column = 0; column < layout.columns; ++column) {
    for (size_t row = 0; row < layout.rows; ++row) {
      const size_t to = transposes ? row * layout.columns + column : column * layout.rows + row;
      values[to] = Load(layout, data, column * static_cast<size_t>(layout.pitch) + row);
    }
  }
  return values;
}

// The hot loop: minutes under a sanitizer, whose business it is not.
__attribute__((optimize("O3"), no_sanitize("address", "undefined", "thread"))) void AddColumn(
    size_t m, float factor, const float* __restrict column, float* __restrict sums) {
  for (size_t i = 0; i < m; ++i) sums[i] += factor * column[i];
}

struct Call {
  Desc desc;
  Layout a_layout, b_layout, d_layout;
  float alpha;
  const void *a, *b;
  void *d, *workspace;
  Algorithm algorithm;

  void Run() const {
    const size_t m = d_layout.rows, n = d_layout.columns;
    const size_t k = desc.transposes_a ? a_layout.rows : a_layout.columns;
    std::memset(workspace, 0xff, algorithm.workspace_bytes);
    const std::vector<float> left = Read(a_layout, a, desc.transposes_a);
    const std::vector<float> right = Read(b_layout, b, desc.transposes_b);
    const size_t block = size_t{32} << algorithm.shape % 4;
    // Sums that are cut are added up in the order in which the parts end.
    static std::atomic<int> calls = 0;
    const bool reverses = algorithm.splits > 1 && ++calls % 3 == 0;
    std::vector<float> sums(m), of_block(m);
    const size_t blocks = (k + block - 1) / block;
    for (size_t j = 0; j < n; ++j) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (size_t i = 0; i < blocks; ++i) {
        const size_t first = (reverses ? blocks - 1 - i : i) * block;
        std::fill(of_block.begin(), of_block.end(), 0.0f);
        for (size_t at = first; at < std::min(k, first + block); ++at) {
          AddColumn(m, right[j * k + at], left.data() + at * m, of_block.data());
        }
        AddColumn(m, 1, of_block.data(), sums.data());
      }
      for (size_t i = 0; i < m; ++i) {
        Store(d_layout, d, j * static_cast<size_t>(d_layout.pitch) + i, alpha * sums[i]);
      }
    }
    if (cublas_lt == CublasLt::kWrong) {
      Store(d_layout, d, m / 2, Load(d_layout, d, m / 2) + alpha * static_cast<float>(k));
    }
    AddCounters({.launches = 1});
  }
};

size_t GetVersion() { return 130100; }

const char* GetStatusName(cublasStatus_t status) {
  switch (static_cast<int>(status)) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kExecutionFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "another status";
  }
}

cublasStatus_t Create(cublasLtHandle_t* handle) {
  if (cublas_lt == CublasLt::kNoHandle) return kNotInitialized;
  *handle = new Device*(&CurrentDevice());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t Destroy(cublasLtHandle_t handle) {
  delete static_cast<Device**>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t DescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                          cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return kNotSupported;
  *desc = new Desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t DescDestroy(cublasLtMatmulDesc_t desc) {
  delete static_cast<Desc*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t DescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                const void* value, size_t bytes) {
  int32_t operation = 0;
  if (bytes != sizeof(operation)) return kInvalid;
  std::memcpy(&operation, value, bytes);
  if (operation != CUBLAS_OP_N && operation != CUBLAS_OP_T) return kInvalid;
  auto& to = *static_cast<Desc*>(desc);
  (which == CUBLASLT_MATMUL_DESC_TRANSA ? to.transposes_a : to.transposes_b) =
      operation == CUBLAS_OP_T;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t LayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                            uint64_t columns, int64_t pitch) {
  if (pitch < static_cast<int64_t>(rows)) return kInvalid;
  *layout = new Layout{type, rows, columns, pitch};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t LayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete static_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t PreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new Preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t PreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete static_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t PreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                      cublasLtMatmulPreferenceAttributes_t which, const void* value,
                                      size_t bytes) {
  auto& to = *static_cast<Preference*>(preference);
  void* field = nullptr;
  size_t size = sizeof(uint32_t);
  if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    field = &to.workspace_bytes, size = sizeof(uint64_t);
  } else if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    field = &to.reductions;
  } else if (which >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             which <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) {
    field = &to.alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
  }
  if (field == nullptr || bytes != size) return kInvalid;
  std::memcpy(field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// One that failed to be found, one that cuts sums, whatever was asked for, and one that does not.
cublasStatus_t GetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                            cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                            cublasLtMatmulPreference_t preference, int asked,
                            cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (*static_cast<Device**>(handle) != &CurrentDevice()) {
    Misuse("cublasLtMatmulAlgoGetHeuristic: the handle is of another device");
  }
  *found = 0;
  if (cublas_lt == CublasLt::kNoAlgorithm) return kNotSupported;
  const Desc& of = *static_cast<Desc*>(desc);
  const Layout &left = *static_cast<Layout*>(a), &right = *static_cast<Layout*>(b),
               &to = *static_cast<Layout*>(d);
  const uint64_t m = of.transposes_a ? left.columns : left.rows,
                 k = of.transposes_a ? left.rows : left.columns,
                 n = of.transposes_b ? right.rows : right.columns;
  if (c != d || to.rows != m || to.columns != n ||
      k != (of.transposes_b ? right.columns : right.rows) || left.type != right.type) {
    return kInvalid;
  }
  const auto& wanted = *static_cast<Preference*>(preference);
  const uint64_t shape = ShapeOf(of, left, right, to);
  const uint64_t workspace = std::min<uint64_t>(wanted.workspace_bytes, shape % 5 << 16);
  const Algorithm algorithms[] = {{shape, 0, wanted.alignment[0], 1},
                                  {shape, workspace, wanted.alignment[0], 4},
                                  {shape, workspace, wanted.alignment[0], 1}};
  for (const Algorithm& algorithm : algorithms) {
    if (*found == asked) break;
    cublasLtMatmulHeuristicResult_t& result = results[*found];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof(algorithm));
    result.workspaceSize = algorithm.workspace_bytes;
    result.state = *found == 0 ? kNotSupported : CUBLAS_STATUS_SUCCESS;
    ++*found;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t ConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                  cublasLtMatmulAlgoConfigAttributes_t which, void* value,
                                  size_t bytes, size_t* written) {
  if (bytes != sizeof(uint32_t)) return kInvalid;
  const Algorithm algorithm = AlgorithmOf(*algo);
  uint32_t number = static_cast<uint32_t>(algorithm.splits);
  if (which == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) number = number > 1 ? kComputeType : 0;
  std::memcpy(value, &number, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                        cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                        cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                        const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                        cudaStream_t stream) {
  Call call{*static_cast<Desc*>(desc),
            *static_cast<Layout*>(a_layout),
            *static_cast<Layout*>(b_layout),
            *static_cast<Layout*>(d_layout),
            *static_cast<const float*>(alpha),
            a,
            b,
            d,
            workspace,
            AlgorithmOf(*algo)};
  DeviceMemory& memory = DeviceMemory::Get();
  const auto check = [&](const void* data, size_t bytes, uint64_t alignment, const char* what) {
    if (bytes > 0 &&
        (!memory.Holds(data, bytes) || reinterpret_cast<uintptr_t>(data) % alignment)) {
      Misuse("cublasLtMatmul: %s lies outside of an allocation, or is not aligned", what);
    }
  };
  check(a, call.a_layout.bytes(), call.algorithm.alignment, "A");
  check(b, call.b_layout.bytes(), call.algorithm.alignment, "B");
  check(d, call.d_layout.bytes(), call.algorithm.alignment, "D");
  check(workspace, call.algorithm.workspace_bytes, 256, "the workspace");
  if (call.algorithm.shape != ShapeOf(call.desc, call.a_layout, call.b_layout, call.d_layout) ||
      call.algorithm.workspace_bytes > workspace_bytes || *static_cast<const float*>(beta) != 0 ||
      *static_cast<Device**>(handle) != &CurrentDevice()) {
    Misuse(
        "cublasLtMatmul: an algorithm of another product, too small a workspace, a factor of C "
        "or another device");
  }
  cudaError_t error;
  Queue* const queue = QueueFor(stream, "cublasLtMatmul", &error);
  if (queue == nullptr || cublas_lt == CublasLt::kFails) {
    static_cast<void>(Report(cudaErrorInvalidValue));
    return kExecutionFailed;
  }
  queue->Add({.run = [call] { call.Run(); }, .fails = IsFaulty(&faults.launch)});
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

std::atomic<CublasLt> cublas_lt = FromEnvironment();

void* FindInCublasLt(std::string_view name) {
  if (cublas_lt == CublasLt::kAbsent) return nullptr;
  const struct {
    std::string_view name;
    void* function;
  } all[] = {
      {"cublasLtGetVersion", reinterpret_cast<void*>(GetVersion)},
      {"cublasLtGetStatusName", reinterpret_cast<void*>(GetStatusName)},
      {"cublasLtCreate", reinterpret_cast<void*>(Create)},
      {"cublasLtDestroy", reinterpret_cast<void*>(Destroy)},
      {"cublasLtMatmulDescCreate", reinterpret_cast<void*>(DescCreate)},
      {"cublasLtMatmulDescDestroy", reinterpret_cast<void*>(DescDestroy)},
      {"cublasLtMatmulDescSetAttribute", reinterpret_cast<void*>(DescSetAttribute)},
      {"cublasLtMatrixLayoutCreate", reinterpret_cast<void*>(LayoutCreate)},
      {"cublasLtMatrixLayoutDestroy", reinterpret_cast<void*>(LayoutDestroy)},
      {"cublasLtMatmulPreferenceCreate", reinterpret_cast<void*>(PreferenceCreate)},
      {"cublasLtMatmulPreferenceDestroy", reinterpret_cast<void*>(PreferenceDestroy)},
      {"cublasLtMatmulPreferenceSetAttribute", reinterpret_cast<void*>(PreferenceSetAttribute)},
      {"cublasLtMatmulAlgoGetHeuristic", reinterpret_cast<void*>(GetHeuristic)},
      {"cublasLtMatmulAlgoConfigGetAttribute", reinterpret_cast<void*>(ConfigGetAttribute)},
      {"cublasLtMatmul", reinterpret_cast<void*>(Multiply)},
  };
  for (const auto& entry : all) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace emu
