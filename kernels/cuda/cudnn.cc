#include "kernels/cuda/cudnn.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/cudnn_descriptor.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_plan.h"

namespace attnd::cuda {
namespace {

using namespace dnn;

// By NVIDIA's own account 9.10.0 and 9.10.1 compute attention wrongly, and 9.14.0 windows of long
// sequences.
constexpr size_t kLeastVersion = 91002, kWrongVersion = 91400;

constexpr LibraryFacts kCudnn = {.name = "cuDNN",
                                 .file = "libcudnn.so.9",
                                 .other = "libcudnn.so",
                                 .instead = "own kernels serve all attention"};

bool FindAll(Functions* f) {
  const auto find = [](const char* name, auto** function) { return Find(kCudnn, name, function); };
  return find("cudnnGetVersion", &f->GetVersion) &&
         find("cudnnGetErrorString", &f->GetErrorString) && find("cudnnCreate", &f->Create) &&
         find("cudnnDestroy", &f->Destroy) && find("cudnnSetStream", &f->SetStream) &&
         find("cudnnBackendCreateDescriptor", &f->BackendCreateDescriptor) &&
         find("cudnnBackendDestroyDescriptor", &f->BackendDestroyDescriptor) &&
         find("cudnnBackendFinalize", &f->BackendFinalize) &&
         find("cudnnBackendSetAttribute", &f->BackendSetAttribute) &&
         find("cudnnBackendGetAttribute", &f->BackendGetAttribute) &&
         find("cudnnBackendExecute", &f->BackendExecute);
}

std::string VersionOf(size_t number) {
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

std::string NotServing(size_t version) {
  return "it must be " + VersionOf(kLeastVersion) + " or later, but not " +
         VersionOf(kWrongVersion) + ", got " + VersionOf(version);
}

// Scratch of a gradient before that of its engine: float32 sums of dq, which engines set to zero
// themselves from 9.6 on, and a number of each row.
struct GradientBytes {
  int64_t dq_sums = 0, shift = 0;

  explicit GradientBytes(const DnnAttend& a) {
    if (!a.is_gradient) return;
    dq_sums = Aligned(a.H * a.Nq * a.D), shift = Aligned(a.H * a.Nq);
  }
  int64_t whole() const { return dq_sums + shift; }
  static int64_t Aligned(int64_t floats) { return RoundUp(floats * 4, Cudnn::kWorkspaceAlign); }
};

}  // namespace

class Cudnn::Plan {
 public:
  Plan(const Functions& functions, cudnnHandle_t handle, const DnnAttend& a)
      : attend(a), graph(functions, handle, attend) {
    if (graph.ok()) {
      chosen = ChoosePlan(functions, handle, graph.graph(),
                          {.may_vary = attend.is_gradient, .workspace_bytes = kMostEngineBytes});
    }
  }

  const DnnAttend attend;
  const AttendGraph graph;
  ChosenPlan chosen;
};

std::unique_ptr<Cudnn> Cudnn::Open(Warn warn, std::string* why_not) {
  auto functions = std::make_unique<Functions>();
  if (!FindAll(functions.get())) {
    *why_not = NotInstalled(kCudnn);
    return nullptr;
  }
  const size_t version = functions->GetVersion();
  if (version < kLeastVersion || version == kWrongVersion) {
    *why_not = NotStarting(kCudnn, NotServing(version));
    return nullptr;
  }
  Handles handles;
  cudnnStatus_t status = functions->Create(&handles.builds);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = functions->Create(&handles.executes);
    if (status != CUDNN_STATUS_SUCCESS) functions->Destroy(handles.builds);
  }
  if (status != CUDNN_STATUS_SUCCESS) {
    *why_not = NotStarting(kCudnn, functions->GetErrorString(status));
    return nullptr;
  }
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return std::unique_ptr<Cudnn>(new Cudnn(std::move(functions), handles, device, std::move(warn)));
}

Cudnn::Cudnn(std::unique_ptr<const Functions> functions, Handles handles, int device, Warn warn)
    : Library(kCudnn, std::move(warn)),
      functions_(std::move(functions)),
      handles_(handles),
      device_(device) {}

Cudnn::~Cudnn() {
  {
    const MutexLock lock(&mu_);
    plans_.clear();
    gradient_plans_.clear();
  }
  functions_->Destroy(handles_.executes);
  functions_->Destroy(handles_.builds);
}

std::string Cudnn::name() const { return "cuDNN " + VersionOf(functions_->GetVersion()); }

std::shared_ptr<const Cudnn::Plan> Cudnn::PlanOf(const DnnAttend& attend) {
  if (!failure().empty()) return nullptr;
  std::shared_ptr<const Plan> plan;
  if (Knows(attend, &plan)) return plan;
  // A shape is computed the same way at every call: who wants one that is being compiled waits.
  if (!TakeTurn()) return nullptr;
  struct Turn {
    Cudnn* const of;
    ~Turn() { of->EndTurn(); }
  } const turn{this};
  if (Knows(attend, &plan)) return plan;
  plan = NewPlan(attend);
  const MutexLock lock(&mu_);
  Plans& plans = attend.is_gradient ? gradient_plans_ : plans_;
  return plans.emplace(attend, std::move(plan)).first->second;
}

bool Cudnn::TakeTurn() {
  // Soon enough for a run that is stopped; and the watchdog of a server sees that the thread lives.
  constexpr std::chrono::milliseconds kLook{20};
  int64_t own;
  {
    const MutexLock lock(&turns_mu_);
    waiting_.push_back(own = ++last_);
  }
  while (true) {
    const bool is_stopped = CheckPoint();
    const MutexLock lock(&turns_mu_);
    const bool is_next = !builds_ && waiting_.front() == own;
    if (is_stopped || is_next) {
      std::erase(waiting_, own);
      builds_ = builds_ || !is_stopped;
      turn_ended_.NotifyAll();
      return !is_stopped;
    }
    turn_ended_.WaitUntil(&turns_mu_, std::chrono::steady_clock::now() + kLook);
  }
}

void Cudnn::EndTurn() {
  const MutexLock lock(&turns_mu_);
  builds_ = false;
  turn_ended_.NotifyAll();
}

bool Cudnn::Knows(const DnnAttend& attend, std::shared_ptr<const Plan>* plan) {
  {
    const MutexLock lock(&mu_);
    const Plans& plans = attend.is_gradient ? gradient_plans_ : plans_;
    const auto found = plans.find(attend);
    if (found != plans.end()) {
      *plan = found->second;
      return true;
    }
    const auto is_of_kind = [&](const auto& entry) {
      const DnnAttend& other = entry.first;
      return other.dtype == attend.dtype && other.D == attend.D && other.Dv == attend.Dv;
    };
    if (plans.size() < kMostPlans &&
        std::ranges::count_if(plans, is_of_kind) < std::ptrdiff_t{kMostPlansOfKind}) {
      return false;
    }
  }
  if (!has_told_.exchange(true)) {
    Tell(std::string("has no place for more shapes, first of ") +
         (attend.is_gradient ? "gradients of " : "") +
         (attend.dtype == DType::kF16 ? "float16" : "bfloat16") + " with D " +
         std::to_string(attend.D) + ": own kernels serve new ones until the next start");
  }
  return true;
}

std::shared_ptr<const Cudnn::Plan> Cudnn::NewPlan(const DnnAttend& attend) const {
  static_cast<void>(cudaSetDevice(device_));
  auto plan = std::make_shared<const Plan>(*functions_, handles_.builds, attend);
  return plan->chosen.plan == nullptr ? nullptr : plan;
}

int64_t Cudnn::WorkspaceBytes(const Plan& plan) {
  return GradientBytes(plan.attend).whole() + plan.chosen.workspace_bytes;
}

int64_t Cudnn::MostWorkspaceBytes(const DnnAttend& attend) {
  return GradientBytes(attend).whole() + kMostEngineBytes;
}

bool Cudnn::Attend(const Plan& plan, const DnnCall& call, void* workspace, cudaStream_t stream) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity(), kOne = 1;
  const auto after = static_cast<int32_t>(call.after);
  const auto before = static_cast<float>(call.before + 1);
  const GradientBytes scratch(plan.attend);
  auto* const bytes = static_cast<std::byte*>(workspace);
  void* const of_engine = bytes + scratch.whole();
  std::vector<int64_t> uids;
  std::vector<const void*> data;
  const auto add = [&](Uid uid, const void* of) {
    uids.push_back(static_cast<int64_t>(uid));
    data.push_back(of);
  };
  add(Uid::kQ, call.q), add(Uid::kK, call.k), add(Uid::kV, call.v);
  add(Uid::kOut, call.out), add(Uid::kLse, call.lse), add(Uid::kScale, &call.scale);
  if (plan.attend.is_gradient) {
    add(Uid::kDout, call.dout), add(Uid::kDq, call.dq), add(Uid::kDk, call.dk);
    add(Uid::kDv, call.dv), add(Uid::kOne, &kOne);
    add(Uid::kDqSums, bytes), add(Uid::kShift, bytes + scratch.dq_sums);
  }
  if (plan.attend.is_bounded_after) add(Uid::kRightHidden, &kHidden), add(Uid::kAfter, &after);
  if (plan.attend.is_bounded_before) add(Uid::kLeftHidden, &kHidden), add(Uid::kBefore, &before);
  const auto count = static_cast<int64_t>(uids.size());
  Descriptor pack(*functions_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data());
  pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data());
  pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &of_engine);
  pack.Finalize();
  cudnnStatus_t status = pack.status();
  if (pack.ok()) {
    const MutexLock lock(&executes_mu_);
    status = functions_->SetStream(handles_.executes, stream);
    if (status == CUDNN_STATUS_SUCCESS) {
      status = functions_->BackendExecute(handles_.executes, plan.chosen.plan->get(), pack.get());
    }
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    CountCall();
    return true;
  }
  // What it may have left for the next launch to find.
  static_cast<void>(cudaGetLastError());
  Fail(std::string("cudnnBackendExecute: ") + functions_->GetErrorString(status));
  return false;
}

}  // namespace attnd::cuda
