#include "kernels/cuda/cufft.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cufft_api.h"

namespace attnd::cuda {
namespace {

using namespace cufft;

constexpr LibraryFacts kCufft = {.name = "cuFFT",
                                 .file = "libcufft.so.12",
                                 .other = "libcufft.so",
                                 .instead = "own kernels serve all transforms"};

bool FindAll(Functions* f) {
  const auto find = [](const char* name, auto** function) { return Find(kCufft, name, function); };
  return find("cufftGetVersion", &f->GetVersion) && find("cufftCreate", &f->Create) &&
         find("cufftDestroy", &f->Destroy) &&
         find("cufftSetAutoAllocation", &f->SetAutoAllocation) &&
         find("cufftMakePlanMany64", &f->MakePlanMany64) && find("cufftSetStream", &f->SetStream) &&
         find("cufftSetWorkArea", &f->SetWorkArea) && find("cufftExecR2C", &f->ExecR2C);
}

// The library has no function for it.
std::string NameOf(cufftResult result) {
  switch (result) {
    case CUFFT_INVALID_PLAN:
      return "CUFFT_INVALID_PLAN";
    case CUFFT_ALLOC_FAILED:
      return "CUFFT_ALLOC_FAILED";
    case CUFFT_INVALID_VALUE:
      return "CUFFT_INVALID_VALUE";
    case CUFFT_INTERNAL_ERROR:
      return "CUFFT_INTERNAL_ERROR";
    case CUFFT_EXEC_FAILED:
      return "CUFFT_EXEC_FAILED";
    case CUFFT_SETUP_FAILED:
      return "CUFFT_SETUP_FAILED";
    default:
      return "status " + std::to_string(static_cast<int>(result));
  }
}

// At most what a plan keeps on the device, by estimate: two roots for each element of a side.
int64_t TableBytes(int64_t N, int64_t M) { return 16 * (N + M); }

}  // namespace

class Cufft::Plan {
 public:
  Plan(std::shared_ptr<const Functions> functions, int device)
      : functions_(std::move(functions)), device_(device) {}
  ~Plan() {
    if (!is_made_) return;
    // The last user may be any thread.
    static_cast<void>(cudaSetDevice(device_));
    functions_->Destroy(handle_);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool Make(int64_t N, int64_t M) {
    if (functions_->Create(&handle_) != 0) return false;
    is_made_ = true;
    const long long half = M / 2 + 1;
    long long n[] = {N, M}, from[] = {N, 2 * half}, to[] = {N, half};
    size_t bytes = 0;
    if (functions_->SetAutoAllocation(handle_, 0) != 0 ||
        functions_->MakePlanMany64(handle_, /*rank=*/2, n, from, /*istride=*/1, from[0] * from[1],
                                   to, /*ostride=*/1, to[0] * to[1], CUFFT_R2C, /*batch=*/1,
                                   &bytes) != 0) {
      return false;
    }
    workspace_bytes = static_cast<int64_t>(bytes);
    return true;
  }

  // The function that fails, and how; empty: the stream was asked.
  std::string Transform(void* matrix, void* workspace, cudaStream_t stream) {
    const MutexLock lock(&mu_);
    const auto failed = [](const char* function, cufftResult result) {
      return result == 0 ? std::string() : function + (": " + NameOf(result));
    };
    std::string failure = failed("cufftSetStream", functions_->SetStream(handle_, stream));
    if (failure.empty()) {
      failure = failed("cufftSetWorkArea", functions_->SetWorkArea(handle_, workspace));
    }
    if (failure.empty()) {
      failure =
          failed("cufftExecR2C", functions_->ExecR2C(handle_, static_cast<float*>(matrix), matrix));
    }
    return failure;
  }

  int64_t workspace_bytes = 0;

 private:
  const std::shared_ptr<const Functions> functions_;
  const int device_;
  bool is_made_ = false;
  Mutex mu_;
  cufftHandle handle_ = 0;
};

std::unique_ptr<Cufft> Cufft::Open(Warn warn, std::string* why_not) {
  auto functions = std::make_shared<Functions>();
  if (!FindAll(functions.get())) {
    *why_not = NotInstalled(kCufft);
    return nullptr;
  }
  cufftHandle handle = 0;
  if (const cufftResult result = functions->Create(&handle); result != 0) {
    *why_not = NotStarting(kCufft, NameOf(result));
    return nullptr;
  }
  functions->Destroy(handle);
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return std::unique_ptr<Cufft>(new Cufft(std::move(functions), device, std::move(warn)));
}

Cufft::Cufft(std::shared_ptr<const Functions> functions, int device, Warn warn)
    : Library(kCufft, std::move(warn)), functions_(std::move(functions)), device_(device) {}

Cufft::~Cufft() = default;

std::string Cufft::name() const {
  int version = 0;
  functions_->GetVersion(&version);
  return "cuFFT " + std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) +
         "." + std::to_string(version % 100);
}

std::shared_ptr<Cufft::Plan> Cufft::PlanOf(int64_t N, int64_t M) {
  if (!failure().empty()) return nullptr;
  const Size size = {N, M};
  std::shared_ptr<Plan> plan;
  if (Find(size, &plan)) return plan;
  const MutexLock one(&making_);
  // Another thread may have made it.
  if (Find(size, &plan)) return plan;
  plan = NewPlan(N, M);
  std::vector<std::shared_ptr<Plan>> ended;
  const MutexLock lock(&mu_);
  const int64_t bytes = plan == nullptr ? 0 : TableBytes(N, M);
  while (!plans_.empty() &&
         (plans_.size() >= kMostPlans || table_bytes_ + bytes > kMostTableBytes)) {
    const auto oldest = std::ranges::min_element(
        plans_, {}, [](const auto& entry) { return entry.second.last_use; });
    table_bytes_ -= oldest->second.table_bytes;
    ended.push_back(std::move(oldest->second.plan));
    plans_.erase(oldest);
  }
  table_bytes_ += bytes;
  plans_[size] = {.plan = plan, .table_bytes = bytes, .last_use = ++uses_};
  return plan;
}

bool Cufft::Find(const Size& size, std::shared_ptr<Plan>* plan) {
  const MutexLock lock(&mu_);
  const auto found = plans_.find(size);
  if (found == plans_.end()) return false;
  found->second.last_use = ++uses_;
  *plan = found->second.plan;
  return true;
}

std::shared_ptr<Cufft::Plan> Cufft::NewPlan(int64_t N, int64_t M) const {
  auto plan = std::make_shared<Plan>(functions_, device_);
  if (plan->Make(N, M)) return plan;
  // What it may have left for the next launch to find.
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

int64_t Cufft::WorkspaceBytes(const Plan& plan) { return plan.workspace_bytes; }

DeviceStatus Cufft::Transform(Plan& plan, void* matrix, void* workspace, cudaStream_t stream) {
  const std::string failure = plan.Transform(matrix, workspace, stream);
  if (failure.empty()) {
    CountCall();
    return {};
  }
  // What it may have left for the next launch to find.
  static_cast<void>(cudaGetLastError());
  const cudaError_t error = cudaStreamQuery(stream);
  if (error != cudaSuccess && error != cudaErrorNotReady) return StatusOf(error, "fft");
  Fail(failure);
  return {DeviceStatus::Code::kDeclined, failure};
}

}  // namespace attnd::cuda
