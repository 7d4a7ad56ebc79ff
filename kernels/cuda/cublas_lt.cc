#include "kernels/cuda/cublas_lt.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cuda/cublas_lt_api.h"

namespace attnd::cuda {
namespace {

using namespace lt;

// Plans that are kept. Beyond, all are made again, which gives the same ones.
constexpr size_t kMostPlans = 512;
// Algorithms that are asked for, the fastest first; most products take the first.
constexpr int kAlgorithms = 8;

constexpr LibraryFacts kCublasLt = {.name = "cuBLASLt",
                                    .file = "libcublasLt.so.13",
                                    .other = "libcublasLt.so",
                                    .instead = "own kernels serve all products"};

bool FindAll(Functions* f) {
  const auto find = [](const char* name, auto** function) {
    return Find(kCublasLt, name, function);
  };
  return find("cublasLtGetVersion", &f->GetVersion) &&
         find("cublasLtGetStatusName", &f->GetStatusName) && find("cublasLtCreate", &f->Create) &&
         find("cublasLtDestroy", &f->Destroy) &&
         find("cublasLtMatmulDescCreate", &f->MatmulDescCreate) &&
         find("cublasLtMatmulDescDestroy", &f->MatmulDescDestroy) &&
         find("cublasLtMatmulDescSetAttribute", &f->MatmulDescSetAttribute) &&
         find("cublasLtMatrixLayoutCreate", &f->MatrixLayoutCreate) &&
         find("cublasLtMatrixLayoutDestroy", &f->MatrixLayoutDestroy) &&
         find("cublasLtMatmulPreferenceCreate", &f->MatmulPreferenceCreate) &&
         find("cublasLtMatmulPreferenceDestroy", &f->MatmulPreferenceDestroy) &&
         find("cublasLtMatmulPreferenceSetAttribute", &f->MatmulPreferenceSetAttribute) &&
         find("cublasLtMatmulAlgoGetHeuristic", &f->MatmulAlgoGetHeuristic) &&
         find("cublasLtMatmulAlgoConfigGetAttribute", &f->MatmulAlgoConfigGetAttribute) &&
         find("cublasLtMatmul", &f->Matmul);
}

cudaDataType_t TypeOf(DType dtype) {
  return dtype == DType::kF16 ? CUDA_R_16F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

}  // namespace

// Descriptors and an algorithm.
class CublasLt::Plan {
 public:
  explicit Plan(const Functions& functions) : functions_(functions) {}
  ~Plan() {
    if (desc != nullptr) functions_.MatmulDescDestroy(desc);
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) functions_.MatrixLayoutDestroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool Describe(const LtProduct& p) {
    const auto layout = [&](cublasLtMatrixLayout_t* to, DType dtype, int64_t rows, int64_t columns,
                            int64_t pitch) {
      return functions_.MatrixLayoutCreate(to, TypeOf(dtype), static_cast<uint64_t>(rows),
                                           static_cast<uint64_t>(columns), pitch) == 0;
    };
    const auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposes) {
      const int32_t operation = transposes ? CUBLAS_OP_T : CUBLAS_OP_N;
      return functions_.MatmulDescSetAttribute(desc, which, &operation, sizeof(operation)) == 0;
    };
    return functions_.MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0 &&
           transpose(CUBLASLT_MATMUL_DESC_TRANSA, p.transposes_a) &&
           transpose(CUBLASLT_MATMUL_DESC_TRANSB, p.transposes_b) &&
           layout(&a, p.operands, p.transposes_a ? p.k : p.m, p.transposes_a ? p.m : p.k,
                  p.a_pitch) &&
           layout(&b, p.operands, p.transposes_b ? p.n : p.k, p.transposes_b ? p.k : p.n,
                  p.b_pitch) &&
           layout(&d, p.d, p.m, p.n, p.d_pitch);
  }

  // The fastest algorithm, by the library's own prediction, that does not cut sums.
  bool Choose(cublasLtHandle_t handle) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (functions_.MatmulPreferenceCreate(&preference) != 0) return false;
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
      return functions_.MatmulPreferenceSetAttribute(preference, which, &value, sizeof(value)) == 0;
    };
    constexpr uint32_t kAlignment = kAlign;
    std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> results;
    int found = 0;
    const bool is_answered =
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kMostWorkspaceBytes}) &&
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment) &&
        functions_.MatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, kAlgorithms,
                                          results.data(), &found) == 0;
    functions_.MatmulPreferenceDestroy(preference);
    if (!is_answered) return false;
    for (int i = 0; i < found; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
      if (result.state != 0 || result.workspaceSize > uint64_t{kMostWorkspaceBytes} ||
          CutsSums(result.algo)) {
        continue;
      }
      algorithm = result.algo;
      workspace_bytes = static_cast<int64_t>(result.workspaceSize);
      return true;
    }
    return false;
  }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;

 private:
  // Parts of a sum that are added by atomics or rounded to 16 bits would give other bits at times,
  // or worse ones.
  bool CutsSums(const cublasLtMatmulAlgo_t& of) const {
    int32_t parts = 0;
    uint32_t scheme = 0;
    size_t written = 0;
    return functions_.MatmulAlgoConfigGetAttribute(&of, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                   sizeof(parts), &written) != 0 ||
           functions_.MatmulAlgoConfigGetAttribute(&of, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                   &scheme, sizeof(scheme), &written) != 0 ||
           parts > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
  }

  const Functions& functions_;
};

std::unique_ptr<CublasLt> CublasLt::Open(Warn warn, std::string* why_not) {
  auto functions = std::make_unique<Functions>();
  if (!FindAll(functions.get())) {
    *why_not = NotInstalled(kCublasLt);
    return nullptr;
  }
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t status = functions->Create(&handle); status != 0) {
    *why_not = NotStarting(kCublasLt, functions->GetStatusName(status));
    return nullptr;
  }
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return std::unique_ptr<CublasLt>(
      new CublasLt(std::move(functions), handle, device, std::move(warn)));
}

CublasLt::CublasLt(std::unique_ptr<const Functions> functions, void* handle, int device, Warn warn)
    : Library(kCublasLt, std::move(warn)),
      functions_(std::move(functions)),
      handle_(handle),
      device_(device) {}

CublasLt::~CublasLt() { functions_->Destroy(handle_); }

std::string CublasLt::name() const {
  const size_t version = functions_->GetVersion();
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

std::shared_ptr<const CublasLt::Plan> CublasLt::PlanOf(const LtProduct& product) {
  if (!failure().empty()) return nullptr;
  {
    const MutexLock lock(&mu_);
    if (const auto found = plans_.find(product); found != plans_.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = NewPlan(product);
  const MutexLock lock(&mu_);
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_.emplace(product, std::move(plan)).first->second;
}

std::shared_ptr<const CublasLt::Plan> CublasLt::NewPlan(const LtProduct& product) const {
  // A plan of a request is made on any thread.
  static_cast<void>(cudaSetDevice(device_));
  auto plan = std::make_shared<Plan>(*functions_);
  if (!plan->Describe(product) || !plan->Choose(handle_)) return nullptr;
  return plan;
}

int64_t CublasLt::WorkspaceBytes(const Plan& plan) { return plan.workspace_bytes; }

bool CublasLt::Multiply(const Plan& plan, float alpha, const void* a, const void* b, void* d,
                        void* workspace, cudaStream_t stream) {
  const float beta = 0;
  const cublasStatus_t status = functions_->Matmul(
      handle_, plan.desc, &alpha, a, plan.a, b, plan.b, &beta, d, plan.d, d, plan.d,
      &plan.algorithm, workspace, static_cast<size_t>(plan.workspace_bytes), stream);
  if (status == 0) {
    CountCall();
    return true;
  }
  // What it may have left for the next launch to find.
  static_cast<void>(cudaGetLastError());
  Fail(std::string("cublasLtMatmul: ") + functions_->GetStatusName(status));
  return false;
}

}  // namespace attnd::cuda
