#include "kernels/cuda/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <utility>

namespace attnd::cuda::dnn {
namespace {

// Configurations that are looked at, the fastest first; most graphs take the first.
constexpr int64_t kConfigurations = 8;
constexpr int64_t kMostKnobs = 32, kMostNotes = 16;

cudnnDataType_t TypeOf(DType dtype) {
  return dtype == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

// Whether an engine gives the same bits at every call, and sums in float32 of what it was given.
bool IsExact(const Descriptor& engine) {
  std::array<cudnnBackendNumericalNote_t, kMostNotes> notes;
  const int64_t count = engine.Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   kMostNotes, notes.data());
  return engine.ok() && std::none_of(notes.begin(), notes.begin() + count, [](auto note) {
           return note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
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

Descriptor::Descriptor(const Functions& functions, cudnnBackendDescriptorType_t type)
    : functions_(functions), status_(functions.BackendCreateDescriptor(type, &descriptor_)) {}

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) functions_.BackendDestroyDescriptor(descriptor_);
}

void Descriptor::Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* elements) {
  if (ok()) status_ = functions_.BackendSetAttribute(descriptor_, name, type, count, elements);
}

void Descriptor::Set(cudnnBackendAttributeName_t name, const Descriptor& descriptor) {
  if (!descriptor.ok()) status_ = descriptor.status();
  const cudnnBackendDescriptor_t handle = descriptor.get();
  Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
}

void Descriptor::Set(cudnnBackendAttributeName_t name, int64_t number) {
  Set(name, CUDNN_TYPE_INT64, 1, &number);
}

bool Descriptor::Finalize() {
  if (ok()) status_ = functions_.BackendFinalize(descriptor_);
  return ok();
}

int64_t Descriptor::Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        int64_t most, void* elements) const {
  int64_t count = 0;
  if (!ok()) return 0;
  const cudnnStatus_t status =
      functions_.BackendGetAttribute(descriptor_, name, type, most, &count, elements);
  return status == CUDNN_STATUS_SUCCESS ? std::min(count, most) : 0;
}

AttendGraph::AttendGraph(const Functions& functions, cudnnHandle_t handle, const DnnAttend& a)
    : functions_(functions),
      attend_(a),
      operation_(functions, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR),
      masks_(functions, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
      graph_(functions, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  AddRows(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, Uid::kQ, a.H, a.Nq, a.D, a.q);
  AddRows(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, Uid::kK, a.Hkv, a.Nk, a.D, a.k);
  AddRows(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, Uid::kV, a.Hkv, a.Nk, a.Dv, a.v);
  AddRows(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, Uid::kOut, a.H, a.Nq, a.Dv, a.out);
  Descriptor& lse = NewTensor(Uid::kLse, CUDNN_DATA_FLOAT, {1, a.H, a.Nq, 1},
                              {a.H * a.lse_head, a.lse_head, 1, 1});
  lse.Finalize();
  operation_.Set(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, lse);
  operation_.Set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, NewNumber(Uid::kScale, CUDNN_DATA_FLOAT));
  if (a.is_bounded_before || a.is_bounded_after) AddMasks();
  operation_.Finalize();
  graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph_.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation_);
  graph_.Finalize();
}

Descriptor& AttendGraph::NewPart(cudnnBackendDescriptorType_t type) {
  return *parts_.emplace_back(std::make_unique<Descriptor>(functions_, type));
}

Descriptor& AttendGraph::NewTensor(Uid uid, cudnnDataType_t type, const std::vector<int64_t>& dims,
                                   const std::vector<int64_t>& strides) {
  Descriptor& tensor = NewPart(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const bool is_of_rows = type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
  tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, static_cast<int64_t>(uid));
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, is_of_rows ? Cudnn::kAlign : int64_t{4});
  tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, static_cast<int64_t>(dims.size()),
             dims.data());
  tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, static_cast<int64_t>(strides.size()),
             strides.data());
  return tensor;
}

Descriptor& AttendGraph::NewScores(Uid uid) {
  const int64_t H = attend_.H, Nq = attend_.Nq, Nk = attend_.Nk;
  Descriptor& scores =
      NewTensor(uid, CUDNN_DATA_FLOAT, {1, H, Nq, Nk}, {H * Nq * Nk, Nq * Nk, Nk, 1});
  const bool is_virtual = true;
  scores.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  scores.Finalize();
  return scores;
}

Descriptor& AttendGraph::NewNumber(Uid uid, cudnnDataType_t type) {
  Descriptor& number = NewTensor(uid, type, {1, 1, 1, 1}, {1, 1, 1, 1});
  const bool is_by_value = true;
  number.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_by_value);
  number.Finalize();
  return number;
}

void AttendGraph::AddRows(cudnnBackendAttributeName_t name, Uid uid, int64_t H, int64_t N,
                          int64_t D, const DnnRows& rows) {
  Descriptor& tensor = NewTensor(uid, TypeOf(attend_.dtype), {1, H, N, D},
                                 {std::max(H * rows.head, N * rows.row), rows.head, rows.row, 1});
  tensor.Finalize();
  operation_.Set(name, tensor);
}

// Right: row + after >= column stays. Left: column + before > row does, where `before` counts the
// row itself.
void AttendGraph::AddMasks() {
  Uid last = Uid::kScores;
  const Descriptor* scores = &NewScores(last);
  std::vector<cudnnBackendDescriptor_t> masks;
  const auto add = [&](cudnnPointwiseMode_t mode, Uid hidden, cudnnBackendAttributeName_t bound,
                       const Descriptor& bound_number, Uid result) {
    const Descriptor& next = NewScores(result);
    const Descriptor& hidden_number = NewNumber(hidden, CUDNN_DATA_FLOAT);
    Descriptor& mask = NewPart(CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR);
    mask.Set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, *scores);
    mask.Set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, hidden_number);
    mask.Set(bound, bound_number);
    mask.Set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, next);
    mask.Set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
             &mode);
    if (!mask.Finalize()) masks_.Fail(mask.status());
    masks.push_back(mask.get());
    scores = &next;
    last = result;
  };
  if (attend_.is_bounded_after) {
    add(CUDNN_POINTWISE_CMP_GE, Uid::kRightHidden,
        CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC,
        NewNumber(Uid::kAfter, CUDNN_DATA_INT32), Uid::kRightScores);
  }
  if (attend_.is_bounded_before) {
    add(CUDNN_POINTWISE_CMP_GT, Uid::kLeftHidden,
        CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC,
        NewNumber(Uid::kBefore, CUDNN_DATA_FLOAT), Uid::kLeftScores);
  }
  masks_.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<int64_t>(masks.size()), masks.data());
  masks_.Finalize();
  operation_.Set(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, masks_);
  operation_.Set(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
                 static_cast<int64_t>(Uid::kScores));
  operation_.Set(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, static_cast<int64_t>(last));
}

ChosenPlan ChoosePlan(const Functions& functions, cudnnHandle_t handle, const Descriptor& graph,
                      int64_t most_workspace_bytes) {
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
        !IsExact(engine) || CutsSums(functions, *configuration)) {
      continue;
    }
    auto plan = std::make_unique<Descriptor>(functions, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan->Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    plan->Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *configuration);
    int64_t bytes = 0;
    if (plan->Finalize() &&
        plan->Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes) == 1 &&
        bytes <= most_workspace_bytes) {
      return {std::move(configuration), std::move(plan), bytes};
    }
  }
  return {};
}

}  // namespace attnd::cuda::dnn
