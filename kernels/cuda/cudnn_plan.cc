#include "kernels/cuda/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace attnd::cuda::dnn {
namespace {

// Configurations that are looked at, the fastest first; most graphs take the first.
constexpr int64_t kConfigurations = 8;
constexpr int64_t kMostKnobs = 32, kMostNotes = 16;

// Whether an engine sums in float32 of what it was given and, unless it may vary, gives the same
// bits at every call.
bool IsExact(const Descriptor& engine, bool may_vary) {
  std::array<cudnnBackendNumericalNote_t, kMostNotes> notes;
  const int64_t count = engine.Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   kMostNotes, notes.data());
  return engine.ok() && std::none_of(notes.begin(), notes.begin() + count, [&](auto note) {
           return (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && !may_vary) ||
                  note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
                  note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
         });
}

// Whether a configuration cuts the keys of a row: their parts would be added in any order.
bool CutsSums(const Functions& functions, const Descriptor& configuration) {
  std::vector<std::unique_ptr<Descriptor>> knobs;
  std::array<cudnnBackendDescriptor_t, kMostKnobs> handles;
  for (cudnnBackendDescriptor_t& handle : handles) {
    knobs.push_back(std::make_unique<Descriptor>(functions, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    handle = knobs.back()->get();
  }
  const int64_t count = configuration.Get(
      CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, kMostKnobs, handles.data());
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor& knob = *knobs[static_cast<size_t>(i)];
    cudnnBackendKnobType_t type = {};
    int64_t value = 0;
    const bool is_told =
        knob.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type) == 1 &&
        knob.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value) == 1;
    const bool splits = type == CUDNN_KNOB_TYPE_SPLIT_K || type == CUDNN_KNOB_TYPE_SPLIT_K_BUF ||
                        type == CUDNN_KNOB_TYPE_SPLIT_K_SLC;
    if (!is_told || (splits && value > 1) || (type == CUDNN_KNOB_TYPE_STREAM_K && value != 0)) {
      return true;
    }
  }
  return !configuration.ok();
}

}  // namespace

ChosenPlan ChoosePlan(const Functions& functions, cudnnHandle_t handle, const Descriptor& graph,
                      const PlanLimits& limits) {
  Descriptor heuristics(functions, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (!heuristics.Finalize()) return {};
  std::vector<std::unique_ptr<Descriptor>> configurations;
  std::array<cudnnBackendDescriptor_t, kConfigurations> handles;
  for (cudnnBackendDescriptor_t& to : handles) {
    configurations.push_back(
        std::make_unique<Descriptor>(functions, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    to = configurations.back()->get();
  }
  const int64_t found = heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       kConfigurations, handles.data());
  for (int64_t i = 0; i < found; ++i) {
    std::unique_ptr<Descriptor>& configuration = configurations[static_cast<size_t>(i)];
    const Descriptor engine(functions, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t engine_handle = engine.get();
    if (configuration->Get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                           &engine_handle) != 1 ||
        !IsExact(engine, limits.may_vary) ||
        (!limits.may_vary && CutsSums(functions, *configuration))) {
      continue;
    }
    auto plan = std::make_unique<Descriptor>(functions, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan->Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    plan->Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *configuration);
    int64_t bytes = 0;
    if (plan->Finalize() &&
        plan->Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes) == 1 &&
        bytes <= limits.workspace_bytes) {
      return {std::move(configuration), std::move(plan), bytes};
    }
  }
  return {};
}

}  // namespace attnd::cuda::dnn
