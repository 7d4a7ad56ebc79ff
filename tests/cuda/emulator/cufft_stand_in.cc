// Plans are checked and interpreted, and transforms computed in float64 when the stream runs them.
// A plan is not locked here: callers that use one at a time from several threads are a race, as
// they are for the library. What misuses it aborts.
#include "cufft_stand_in.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "device_memory.h"
#include "kernels/cuda/cufft_api.h"
#include "libraries.h"
#include "options.h"
#include "streams.h"

namespace emu {
namespace {

using namespace attnd::cuda::cufft;
using Complex = std::complex<double>;

Cufft FromEnvironment() {
  const char* const text = std::getenv("EMULATED_CUFFT");
  const std::string_view how = text == nullptr ? "" : text;
  return how == "absent"      ? Cufft::kAbsent
         : how == "no-handle" ? Cufft::kNoHandle
         : how == "no-plan"   ? Cufft::kNoPlan
         : how == "greedy"    ? Cufft::kGreedy
         : how == "fails"     ? Cufft::kFails
         : how == "wrong"     ? Cufft::kWrong
                              : Cufft::kRight;
}

// In place, of matrices N, M.
struct Plan {
  const Device* device;
  bool allocates = true;
  size_t N = 0, M = 0;  // 0: not made
  size_t work_bytes = 0;
  cudaStream_t stream = nullptr;
  void* work = nullptr;

  size_t pitch() const { return M / 2 + 1; }
  size_t bytes() const { return N * pitch() * 2 * sizeof(float); }
};

struct Plans {
  std::mutex mu;
  std::map<cufftHandle, std::shared_ptr<Plan>> by_handle;
  cufftHandle last = 0;
};
Plans& AllPlans() {
  static Plans plans;
  return plans;
}
// Null: there is none.
std::shared_ptr<Plan> PlanOf(cufftHandle handle) {
  Plans& plans = AllPlans();
  const std::lock_guard lock(plans.mu);
  const auto found = plans.by_handle.find(handle);
  return found == plans.by_handle.end() ? nullptr : found->second;
}

// to[t] = sum over u < n of from[stride u] roots[u t step mod length], length = n step.
// The hot loop: seconds under a sanitizer, whose business it is not.
__attribute__((optimize("O3"), no_sanitize("address", "undefined", "thread"))) void Sum(
    size_t n, size_t stride, const Complex* from, const Complex* roots, size_t step, Complex* to,
    Complex* rest) {
  size_t prime = 2;
  while (prime * prime <= n && n % prime != 0) ++prime;
  if (n % prime != 0) prime = n;
  if (n == 1) {
    to[0] = from[0];
    return;
  }
  // The transforms of every prime-th element, each turned and added up.
  const size_t part = n / prime, length = n * step;
  for (size_t p = 0; p < prime; ++p) {
    Sum(part, stride * prime, from + p * stride, roots, step * prime, rest + p * part,
        to + p * part);
  }
  for (size_t t = 0; t < n; ++t) {
    double re = 0, im = 0;
    for (size_t p = 0; p < prime; ++p) {
      const Complex x = rest[p * part + t % part], w = roots[p * t * step % length];
      re += x.real() * w.real() - x.imag() * w.imag();
      im += x.real() * w.imag() + x.imag() * w.real();
    }
    to[t] = {re, im};
  }
}

struct Transform {
  explicit Transform(size_t n) : roots(n), to(n), rest(n) {
    for (size_t i = 0; i < n; ++i) {
      roots[i] = std::polar(1.0, -2 * M_PI * static_cast<double>(i) / static_cast<double>(n));
    }
  }
  const std::vector<Complex>& Run(const Complex* from) {
    Sum(roots.size(), 1, from, roots.data(), 1, to.data(), rest.data());
    return to;
  }
  std::vector<Complex> roots, to, rest;
};

void Run(const Plan& plan, float* matrix) {
  const size_t N = plan.N, M = plan.M, pitch = plan.pitch();
  std::memset(plan.work, 0xff, plan.work_bytes);
  std::vector<Complex> columns(N * pitch), row(M);
  Transform of_rows(M), of_columns(N);
  for (size_t n = 0; n < N; ++n) {
    for (size_t m = 0; m < M; ++m) row[m] = matrix[n * 2 * pitch + m];
    const std::vector<Complex>& done = of_rows.Run(row.data());
    for (size_t m = 0; m < pitch; ++m) columns[m * N + n] = done[m];
  }
  for (size_t m = 0; m < pitch; ++m) {
    const std::vector<Complex>& done = of_columns.Run(columns.data() + m * N);
    for (size_t n = 0; n < N; ++n) {
      matrix[(n * pitch + m) * 2] = static_cast<float>(done[n].real());
      matrix[(n * pitch + m) * 2 + 1] = static_cast<float>(done[n].imag());
    }
  }
  if (cufft == Cufft::kWrong) matrix[N / 2 * pitch * 2] += static_cast<float>(N * M);
  AddCounters({.launches = 1});
}

cufftResult GetVersion(int* version) {
  *version = 12000;
  return CUFFT_SUCCESS;
}

cufftResult Create(cufftHandle* handle) {
  if (cufft == Cufft::kNoHandle) return CUFFT_SETUP_FAILED;
  Plans& plans = AllPlans();
  const std::lock_guard lock(plans.mu);
  *handle = ++plans.last;
  plans.by_handle[*handle] = std::make_shared<Plan>(Plan{.device = &CurrentDevice()});
  ++cufft_alive;
  return CUFFT_SUCCESS;
}

cufftResult Destroy(cufftHandle handle) {
  Plans& plans = AllPlans();
  const std::lock_guard lock(plans.mu);
  if (plans.by_handle.erase(handle) == 0) return CUFFT_INVALID_PLAN;
  --cufft_alive;
  return CUFFT_SUCCESS;
}

cufftResult SetAutoAllocation(cufftHandle handle, int allocates) {
  const auto plan = PlanOf(handle);
  if (plan == nullptr || plan->N > 0) return CUFFT_INVALID_PLAN;
  plan->allocates = allocates != 0;
  return CUFFT_SUCCESS;
}

cufftResult MakePlanMany64(cufftHandle handle, int rank, long long* n, long long* inembed,
                           long long istride, long long idist, long long* onembed,
                           long long ostride, long long odist, cufftType type, long long batch,
                           size_t* work_bytes) {
  const auto plan = PlanOf(handle);
  if (plan == nullptr || plan->N > 0) return CUFFT_INVALID_PLAN;
  if (plan->device != &CurrentDevice()) Misuse("cufftMakePlanMany64: a handle of another device");
  if (plan->allocates) Misuse("cufftMakePlanMany64: the library would allocate the work area");
  if (cufft == Cufft::kNoPlan) return CUFFT_NOT_SUPPORTED;
  const long long half = n[1] / 2 + 1;
  if (rank != 2 || type != CUFFT_R2C || batch != 1 || istride != 1 || ostride != 1 ||
      inembed[1] != 2 * half || onembed[1] != half || idist != 2 * odist || odist != n[0] * half) {
    return CUFFT_INVALID_VALUE;
  }
  plan->N = static_cast<size_t>(n[0]);
  plan->M = static_cast<size_t>(n[1]);
  // Little, or as much as the data.
  plan->work_bytes = plan->M % 2 == 0 ? plan->bytes() : 8 * plan->N + 24;
  if (cufft == Cufft::kGreedy) plan->work_bytes = plan->bytes() + 1024;
  *work_bytes = plan->work_bytes;
  ++cufft_made;
  return CUFFT_SUCCESS;
}

cufftResult SetStream(cufftHandle handle, cudaStream_t stream) {
  const auto plan = PlanOf(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  plan->stream = stream;
  return CUFFT_SUCCESS;
}

cufftResult SetWorkArea(cufftHandle handle, void* work) {
  const auto plan = PlanOf(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  plan->work = work;
  return CUFFT_SUCCESS;
}

cufftResult ExecR2C(cufftHandle handle, float* from, void* to) {
  const auto plan = PlanOf(handle);
  if (plan == nullptr || plan->N == 0) return CUFFT_INVALID_PLAN;
  DeviceMemory& memory = DeviceMemory::Get();
  const auto check = [&](const void* data, size_t bytes, uint64_t alignment, const char* what) {
    if (!memory.Holds(data, bytes) || reinterpret_cast<uintptr_t>(data) % alignment != 0) {
      Misuse("cufftExecR2C: %s lies outside of an allocation, or is not aligned", what);
    }
  };
  check(from, plan->bytes(), 16, "the matrix");
  check(plan->work, plan->work_bytes, 256, "the work area");
  if (from != to || plan->device != &CurrentDevice()) {
    Misuse("cufftExecR2C: a plan of another layout or device");
  }
  cudaError_t error;
  Queue* const queue = QueueFor(plan->stream, "cufftExecR2C", &error);
  if (queue == nullptr || cufft == Cufft::kFails) {
    static_cast<void>(Report(cudaErrorInvalidValue));
    return CUFFT_EXEC_FAILED;
  }
  const auto run = [handle, from, now = *plan] {
    if (PlanOf(handle) == nullptr) Misuse("cufftExecR2C: the plan has ended before its work");
    Run(now, from);
  };
  queue->Add({.run = run, .fails = IsFaulty(&faults.launch)});
  return CUFFT_SUCCESS;
}

}  // namespace

std::atomic<Cufft> cufft = FromEnvironment();
std::atomic<int> cufft_made = 0, cufft_alive = 0;

void* FindInCufft(std::string_view name) {
  if (cufft == Cufft::kAbsent) return nullptr;
  const struct {
    std::string_view name;
    void* function;
  } all[] = {
      {"cufftGetVersion", reinterpret_cast<void*>(GetVersion)},
      {"cufftCreate", reinterpret_cast<void*>(Create)},
      {"cufftDestroy", reinterpret_cast<void*>(Destroy)},
      {"cufftSetAutoAllocation", reinterpret_cast<void*>(SetAutoAllocation)},
      {"cufftMakePlanMany64", reinterpret_cast<void*>(MakePlanMany64)},
      {"cufftSetStream", reinterpret_cast<void*>(SetStream)},
      {"cufftSetWorkArea", reinterpret_cast<void*>(SetWorkArea)},
      {"cufftExecR2C", reinterpret_cast<void*>(ExecR2C)},
  };
  for (const auto& entry : all) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace emu
