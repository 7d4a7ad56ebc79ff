// Descriptors are checked and interpreted, and attention computed plainly when the stream runs it.
// An attribute that is not known is an error. What misuses the library aborts.
#include "cudnn.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "cudnn_attend.h"
#include "cudnn_node.h"
#include "device_memory.h"
#include "libraries.h"
#include "options.h"
#include "streams.h"

namespace emu {
namespace {

Cudnn FromEnvironment() {
  const char* const text = std::getenv("EMULATED_CUDNN");
  const std::string_view how = text == nullptr ? "" : text;
  return how == "absent"            ? Cudnn::kAbsent
         : how == "no-handle"       ? Cudnn::kNoHandle
         : how == "no-engine"       ? Cudnn::kNoEngine
         : how == "fails"           ? Cudnn::kFails
         : how == "wrong"           ? Cudnn::kWrong
         : how == "wrong-bands"     ? Cudnn::kWrongBands
         : how == "wrong-gradients" ? Cudnn::kWrongGradients
         : how == "spreads"         ? Cudnn::kSpreads
                                    : Cudnn::kRight;
}

size_t VersionFromEnvironment() {
  const char* const text = std::getenv("EMULATED_CUDNN_VERSION");
  return text == nullptr ? kNewCudnn : std::strtoul(text, nullptr, 10);
}

struct Handle {
  Device* device;
  cudaStream_t stream = nullptr;
  std::atomic<bool> is_used = false;
};
// A thread must have a handle for itself.
class Use {
 public:
  Use(cudnnHandle_t handle, const char* function) : handle_(*static_cast<Handle*>(handle)) {
    if (handle_.is_used.exchange(true)) Misuse("%s: another thread uses the handle", function);
  }
  ~Use() { handle_.is_used = false; }

 private:
  Handle& handle_;
};
// One that gives other bits at times, one that cuts the keys of a row, and one that does neither.
constexpr int64_t kEngines = 3;

Node& NodeOf(cudnnBackendDescriptor_t descriptor) { return *static_cast<Held*>(descriptor)->node; }
const Node& GraphOf(const Node& configuration) {
  return configuration.At(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

size_t GetVersion() { return cudnn_version; }

const char* GetErrorString(cudnnStatus_t status) {
  switch (static_cast<int>(status)) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case kNotInitialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case kBadParam:
      return "CUDNN_STATUS_BAD_PARAM";
    case kExecutionFailed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "another status";
  }
}

cudnnStatus_t Create(cudnnHandle_t* handle) {
  if (cudnn == Cudnn::kNoHandle) return kNotInitialized;
  *handle = new Handle{&CurrentDevice()};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t Destroy(cudnnHandle_t handle) {
  delete static_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t SetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const Use use(handle, "cudnnSetStream");
  static_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CreateDescriptor(cudnnBackendDescriptorType_t kind,
                               cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Held{std::make_shared<Node>(Node{kind, false, {}})};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t DestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Held*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeDescriptor(cudnnBackendDescriptor_t descriptor) {
  Node& node = NodeOf(descriptor);
  const cudnnStatus_t status = Finalize(&node);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (node.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Use use(node.One<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE),
                  "cudnnBackendFinalize");
    if (cudnn_compiles) cudnn_compiles();
    const Node& configuration = node.At(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const uint64_t hash = HashOf(*AttentionOf(GraphOf(configuration)));
    Put<int64_t>(&node, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                 {static_cast<int64_t>(hash % 3 << 16)});
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  return SetAttribute(&NodeOf(descriptor), name, type, count, elements);
}

// What the library makes of a graph: configurations, each with an engine and a knob.
std::shared_ptr<Node> NewConfiguration(const std::shared_ptr<const Node>& graph, int64_t number) {
  auto knob = std::make_shared<Node>(Node{CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, true, {}});
  Put<cudnnBackendKnobType_t>(knob.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                              {CUDNN_KNOB_TYPE_STREAM_K});
  Put<int64_t>(knob.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, {number == 1});
  auto engine = std::make_shared<Node>(Node{CUDNN_BACKEND_ENGINE_DESCRIPTOR, true, {}});
  std::vector<int> notes = {0};  // CUDNN_NUMERICAL_NOTE_TENSOR_CORE
  if (number == 0) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  Put<int>(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes);
  auto node = std::make_shared<Node>(Node{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, true, {}});
  const auto type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  node->attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] = {type, {}, {graph}};
  node->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {type, {}, {engine}};
  node->attributes[CUDNN_ATTR_ENGINECFG_KNOB_CHOICES] = {type, {}, {knob}};
  return node;
}

cudnnStatus_t Get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t asked, int64_t* count, void* elements) {
  const Node& node = NodeOf(descriptor);
  std::vector<std::shared_ptr<const Node>> nodes;
  if (!node.is_finalized) return kBadParam;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && node.kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    const auto& graph = node.attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).nodes[0];
    const bool is_computed = cudnn != Cudnn::kNoEngine && AttentionOf(*graph) != nullptr;
    for (int64_t i = 0; i < kEngines && is_computed; ++i) {
      nodes.push_back(NewConfiguration(graph, i));
    }
  } else if (!node.Has(name) || node.attributes.at(name).type != type) {
    return kBadParam;
  } else if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const Node::Attribute& attribute = node.attributes.at(name);
    const size_t size = type == CUDNN_TYPE_INT64 ? 8 : 4;
    *count = static_cast<int64_t>(attribute.data.size() / size);
    std::memcpy(elements, attribute.data.data(), std::min<size_t>(*count, asked) * size);
    return CUDNN_STATUS_SUCCESS;
  } else {
    nodes = node.attributes.at(name).nodes;
  }
  *count = static_cast<int64_t>(nodes.size());
  for (int64_t i = 0; i < std::min(*count, asked); ++i) {
    auto* const held = static_cast<Held**>(elements)[i];
    if (held->node->kind != nodes[static_cast<size_t>(i)]->kind) return kBadParam;
    held->node = std::make_shared<Node>(*nodes[static_cast<size_t>(i)]);
  }
  return CUDNN_STATUS_SUCCESS;
}

void CheckMemory(const DnnTensor& tensor, const char* what) {
  if (!DeviceMemory::Get().Holds(tensor.data, tensor.bytes()) ||
      reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(tensor.alignment) != 0) {
    Misuse("cudnnBackendExecute: %s lies outside of an allocation, or is not aligned", what);
  }
}

void CheckApart(const std::vector<const DnnTensor*>& tensors) {
  for (const DnnTensor* a : tensors) {
    for (const DnnTensor* b : tensors) {
      const auto *first = static_cast<std::byte*>(a->data),
                 *second = static_cast<std::byte*>(b->data);
      if (a != b && first <= second && second < first + a->bytes()) {
        Misuse("cudnnBackendExecute: parts of the scratch memory overlap");
      }
    }
  }
}

cudnnStatus_t Execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_of,
                      cudnnBackendDescriptor_t pack_of) {
  const Node &plan = NodeOf(plan_of), &pack = NodeOf(pack_of);
  const Use use(handle, "cudnnBackendExecute");
  const auto& of = *static_cast<Handle*>(handle);
  // The handle of a plan may be another one of the same device.
  if (!plan.is_finalized || !pack.is_finalized || of.device != &CurrentDevice() ||
      static_cast<Handle*>(plan.One<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE))->device !=
          of.device) {
    Misuse("cudnnBackendExecute: a descriptor that is not finalized, or another device");
  }
  const Node& configuration = plan.At(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const auto uids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> data;
  for (size_t i = 0; i < std::min(uids.size(), pointers.size()); ++i) data[uids[i]] = pointers[i];
  std::shared_ptr<DnnAttention> call = AttentionOf(GraphOf(configuration));
  if (uids.size() != pointers.size() || !Bind(data, call.get())) {
    return kBadParam;
  }
  for (const auto& [what, tensor] : call->Tensors()) CheckMemory(*tensor, what);
  const auto workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const auto bytes = plan.One<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  const DnnTensor of_engine = {.alignment = bytes > 0 ? 256 : 1,
                               .dims = {1, 1, 1, std::max<int64_t>(bytes / 4, 1)},
                               .strides = {1, 1, 1, 1},
                               .data = bytes > 0 ? workspace : call->lse.data};
  CheckMemory(of_engine, "the workspace");
  if (call->is_gradient) CheckApart({&call->dq_sums, &call->shift, &of_engine});
  // Of an engine that may give other bits: sums of other blocks at times.
  static std::atomic<int> calls = 0;
  const Node& engine = configuration.At(CUDNN_ATTR_ENGINECFG_ENGINE);
  const Node& knob = configuration.At(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  const bool varies = engine.All<int>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE).size() > 1 ||
                      knob.One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) != 0;
  call->splits = varies && ++calls % 5 == 0;
  const bool is_in_bands = !call->is_gradient && !call->masks.empty();
  call->is_wrong = cudnn == Cudnn::kWrong || (cudnn == Cudnn::kWrongBands && is_in_bands) ||
                   (cudnn == Cudnn::kWrongGradients && call->is_gradient);
  call->spreads = cudnn == Cudnn::kSpreads;
  cudaError_t error;
  Queue* const queue = QueueFor(of.stream, "cudnnBackendExecute", &error);
  if (queue == nullptr || cudnn == Cudnn::kFails) {
    static_cast<void>(Report(cudaErrorInvalidValue));
    return kExecutionFailed;
  }
  const auto run = [call, workspace, bytes] {
    if (bytes > 0) std::memset(workspace, 0xff, static_cast<size_t>(bytes));
    call->Run();
    AddCounters({.launches = 1});
  };
  queue->Add({.run = run, .fails = IsFaulty(&faults.launch)});
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

std::atomic<Cudnn> cudnn = FromEnvironment();
std::atomic<size_t> cudnn_version = VersionFromEnvironment();
std::function<void()> cudnn_compiles;

void* FindInCudnn(std::string_view name) {
  if (cudnn == Cudnn::kAbsent) return nullptr;
  const struct {
    std::string_view name;
    void* function;
  } all[] = {
      {"cudnnGetVersion", reinterpret_cast<void*>(GetVersion)},
      {"cudnnGetErrorString", reinterpret_cast<void*>(GetErrorString)},
      {"cudnnCreate", reinterpret_cast<void*>(Create)},
      {"cudnnDestroy", reinterpret_cast<void*>(Destroy)},
      {"cudnnSetStream", reinterpret_cast<void*>(SetStream)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void*>(CreateDescriptor)},
      {"cudnnBackendDestroyDescriptor", reinterpret_cast<void*>(DestroyDescriptor)},
      {"cudnnBackendFinalize", reinterpret_cast<void*>(FinalizeDescriptor)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void*>(Set)},
      {"cudnnBackendGetAttribute", reinterpret_cast<void*>(Get)},
      {"cudnnBackendExecute", reinterpret_cast<void*>(Execute)},
  };
  for (const auto& entry : all) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace emu
