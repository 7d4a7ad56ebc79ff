#include "kernels/engine/c_api.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/core/exceptions.h"
#include "kernels/engine/devices.h"
#include "kernels/engine/engine.h"
#include "kernels/method/registry.h"

using attnd::OptionInfo;
using attnd::TensorInfo;

struct attnd_engine {
  std::unique_ptr<attnd::Engine> engine;
  std::unique_ptr<attnd::Stream> stream;
  int64_t peak_workspace_bytes = 0;
};

struct attnd_call {
  attnd::Call call;
  absl::Status bad;  // the first argument that no Call can hold
  std::shared_ptr<const attnd::Plan> plan;
  std::vector<std::shared_ptr<attnd::Buffer>> inputs;  // copies on the device (Place)
  std::vector<attnd::Result> results;
  attnd::ProblemCost cost;  // once executed
};

namespace {

thread_local std::string last_error;

int Report(const absl::Status& status) {
  if (!status.ok()) last_error = std::string(status.message());
  return static_cast<int>(status.code());
}

// Nothing thrown may cross into C.
template <class Work>
int Guarded(const Work& work) {
  int code = 0;
  const absl::Status thrown = attnd::WithoutExceptions("", [&] {
    code = Report(work());
    return absl::OkStatus();
  });
  return thrown.ok() ? code : Report(thrown);
}

// Argument setters report nothing: what goes wrong there is told by the next plan.
template <class Work>
void Set(attnd_call* call, const Work& work) {
  call->bad.Update(attnd::WithoutExceptions("", [&] {
    work();
    return absl::OkStatus();
  }));
}

absl::Status MakePlan(attnd_engine* engine, attnd_call* call) {
  if (!call->bad.ok()) return call->bad;
  if (call->plan != nullptr) return absl::OkStatus();
  auto plan = engine->engine->MakePlan(call->call);
  if (!plan.ok()) return plan.status();
  call->plan = *std::move(plan);
  call->cost = {call->plan->visible_pairs, call->plan->flops};
  return absl::OkStatus();
}

// The elements of a view, dense in the order of its layout: its own memory where they are so, else
// a copy.
std::span<const std::byte> DenseBytes(const attnd::View& view, std::vector<std::byte>* copy) {
  const attnd::View dense = attnd::DenseView(view.data, view.dtype, view.shape, view.layout);
  if (view.stride == dense.stride) return {view.As<std::byte>(), static_cast<size_t>(view.bytes())};
  std::vector<std::byte>& bytes = *copy;
  bytes.resize(static_cast<size_t>(view.bytes()));
  const int64_t width = SizeOf(view.dtype);
  for (int64_t n = 0; n < view.shape.size(); ++n) {
    int64_t from = 0, to = 0, rest = n;
    for (int i = view.shape.rank - 1; i >= 0; --i) {
      const int64_t at = rest % view.shape[i];
      from += at * view.stride[i];
      to += at * dense.stride[i];
      rest /= view.shape[i];
    }
    std::memcpy(bytes.data() + to * width, view.As<char>() + from * width,
                static_cast<size_t>(width));
  }
  return bytes;
}

// Copies float tensors to a device that does not work on the host's memory.
absl::Status Place(attnd_engine* engine, attnd_call* call,
                   std::map<std::string, attnd::View>* tensors) {
  attnd::Stream& stream = *engine->stream;
  if (stream.shares_host_memory()) return absl::OkStatus();
  for (auto& [name, view] : *tensors) {
    if (!attnd::IsFloat(view.dtype)) continue;
    const auto copy = std::make_shared<std::vector<std::byte>>();
    const std::span<const std::byte> pieces[] = {DenseBytes(view, copy.get())};
    auto buffer = engine->engine->Upload(stream, view.dtype, pieces, copy);
    ATTND_RETURN_IF_ERROR(buffer.status());
    view = attnd::DenseView((*buffer)->data(), view.dtype, view.shape, view.layout);
    call->inputs.push_back(*std::move(buffer));
  }
  return absl::OkStatus();
}

nlohmann::json ToJson(const OptionInfo& option) {
  return {{"name", option.name},
          {"type", std::string(Name(option.type))},
          {"default_value", option.default_text},
          {"range", option.range},
          {"enum_values", option.enum_values},
          {"help", option.help},
          {"served", option.served}};
}

nlohmann::json ToJson(const TensorInfo& tensor) {
  return {{"name", tensor.name},         {"shape", tensor.shape},
          {"dtype", tensor.dtype},       {"help", tensor.help},
          {"required", tensor.required}, {"differentiable", tensor.differentiable},
          {"served", tensor.served}};
}

template <class Info>
nlohmann::json ToJson(const std::vector<Info>& infos) {
  nlohmann::json list = nlohmann::json::array();
  for (const Info& info : infos) list.push_back(ToJson(info));
  return list;
}

nlohmann::json ToJson(const attnd::MethodInfo& info) {
  const attnd::Support& support = info.support;
  return {{"id", info.id},
          {"summary", info.summary},
          {"reference", info.reference},
          {"cost", info.cost},
          {"options", ToJson(info.options)},
          {"inputs", ToJson(info.inputs)},
          {"outputs", ToJson(info.outputs)},
          {"support",
           {{"causal", support.causal},
            {"lengths", support.lengths},
            {"cross", support.cross},
            {"gqa", support.gqa},
            {"lse", support.lse},
            {"backward", support.backward}}}};
}

}  // namespace

const char* attnd_error(void) { return last_error.c_str(); }

attnd_engine* attnd_engine_new(int threads, const char* isa, int poison) {
  auto made = std::make_unique<attnd_engine>();
  const int code = Guarded([&] {
    const std::string wanted = isa == nullptr ? "" : isa;
    const bool is_cuda = wanted == "cuda:0";
    auto devices = attnd::NewDevices(
        {.kinds = is_cuda ? attnd::DeviceOptions::Kinds::kCuda : attnd::DeviceOptions::Kinds::kCpu,
         .cpu = {.threads = threads, .isa = is_cuda ? "" : wanted, .poison_memory = poison != 0},
         .cuda = {.devices = {0}, .poison_memory = poison != 0},
         .proof = attnd::DeviceOptions::Proof::kNone});
    ATTND_RETURN_IF_ERROR(devices.status());
    made->engine = std::make_unique<attnd::Engine>(std::move(devices->list));
    made->stream =
        std::make_unique<attnd::Stream>(made->engine->device(), &made->engine->device().memory());
    return absl::OkStatus();
  });
  return code == 0 ? made.release() : nullptr;
}

void attnd_engine_free(attnd_engine* engine) { delete engine; }

const char* attnd_engine_description(const attnd_engine* engine) {
  return engine->engine->device().info().description.c_str();
}
const char* attnd_engine_device(const attnd_engine* engine) {
  return engine->engine->device().info().name.c_str();
}

double attnd_engine_peak_flops(const attnd_engine* engine) {
  return engine->engine->device().info().peak_flops;
}

int64_t attnd_engine_launches(const attnd_engine* engine) {
  return engine->engine->device().launches();
}

const char* attnd_methods_json(void) {
  static const auto& text = *[] {
    nlohmann::json methods = nlohmann::json::array();
    for (const auto& method : attnd::AllMethods()) methods.push_back(ToJson(method->info()));
    return new std::string(methods.dump());
  }();
  return text.c_str();
}

attnd_call* attnd_call_new(const char* method, int backward) {
  std::unique_ptr<attnd_call> call;
  const int code = Guarded([&] {
    call = std::make_unique<attnd_call>();
    call->call.method = method;
    if (backward != 0) call->call.direction = attnd::Direction::kBackward;
    return absl::OkStatus();
  });
  return code == 0 ? call.release() : nullptr;
}

void attnd_call_free(attnd_call* call) { delete call; }

void attnd_call_bool(attnd_call* call, const char* option, int value) {
  Set(call, [&] { call->call.options[option] = value != 0; });
}

void attnd_call_int(attnd_call* call, const char* option, int64_t value) {
  Set(call, [&] { call->call.options[option] = value; });
}

void attnd_call_uint(attnd_call* call, const char* option, uint64_t value) {
  Set(call, [&] { call->call.options[option] = value; });
}

void attnd_call_ints(attnd_call* call, const char* option, const int64_t* values, int count) {
  Set(call, [&] { call->call.options[option] = std::vector<int64_t>(values, values + count); });
}

void attnd_call_enums(attnd_call* call, const char* option, const char* const* values, int count) {
  Set(call, [&] { call->call.options[option] = std::vector<std::string>(values, values + count); });
}

void attnd_call_float(attnd_call* call, const char* option, double value) {
  Set(call, [&] { call->call.options[option] = value; });
}

void attnd_call_enum(attnd_call* call, const char* option, const char* value) {
  Set(call, [&] { call->call.options[option] = std::string(value); });
}

void attnd_call_tensor(attnd_call* call, const char* name, int dtype, int rank,
                       const int64_t* shape, const int64_t* stride, int bnhd, const void* data) {
  Set(call, [&] {
    if (dtype < 0 || dtype > static_cast<int>(attnd::DType::kU8) || rank < 1 || rank > 4) {
      call->bad.Update(absl::InvalidArgumentError(absl::StrCat(
          call->call.method, ": ", name, " must have a dtype in 0..4 and a rank in 1..4, got ",
          dtype, " and ", rank)));
      return;
    }
    attnd::View view{.data = const_cast<void*>(data),  // inputs are only read
                     .dtype = static_cast<attnd::DType>(dtype),
                     .layout = bnhd != 0 ? attnd::Layout::kBNHD : attnd::Layout::kBHND};
    view.shape.rank = rank;
    for (int i = 0; i < rank; ++i) {
      view.shape.dims[i] = shape[i];
      view.stride[i] = stride[i];
    }
    call->call.tensors[name] = view;
  });
}

int attnd_plan(attnd_engine* engine, attnd_call* call) {
  return Guarded([&] { return MakePlan(engine, call); });
}

int64_t attnd_call_workspace_bytes(const attnd_call* call) {
  return call->plan == nullptr ? 0 : call->plan->workspace_bytes;
}

double attnd_call_flops(const attnd_call* call) {
  return call->plan == nullptr ? 0 : call->cost.flops;
}

double attnd_call_pairs(const attnd_call* call) {
  return call->plan == nullptr ? 0 : call->cost.visible_pairs;
}

int attnd_call_estimates_pairs(const attnd_call* call) {
  return call->plan != nullptr && call->plan->estimates_pairs ? 1 : 0;
}

double attnd_call_seconds(const attnd_call* call) {
  return call->plan == nullptr ? 0 : call->plan->seconds;
}

const char* attnd_call_note(const attnd_call* call, int index) {
  if (call->plan == nullptr || index < 0) return nullptr;
  const std::vector<std::string>& notes = call->plan->notes;
  return index < static_cast<int>(notes.size()) ? notes[index].c_str() : nullptr;
}

int attnd_execute(attnd_engine* engine, attnd_call** calls, int count) {
  return Guarded([&] {
    // Uploads read the caller's memory, also where this ends early.
    struct Guard {
      attnd::Stream& stream;
      ~Guard() { static_cast<void>(stream.Wait()); }
    } const waits{*engine->stream};
    std::vector<attnd::Problem> batch;
    // Before any is placed: a call may come twice.
    for (int i = 0; i < count; ++i) calls[i]->inputs.clear();
    for (int i = 0; i < count; ++i) {
      ATTND_RETURN_IF_ERROR(MakePlan(engine, calls[i]));
      batch.push_back({calls[i]->plan, calls[i]->call.tensors});
      ATTND_RETURN_IF_ERROR(Place(engine, calls[i], &batch.back().tensors));
    }
    auto execution = engine->engine->Execute(*engine->stream, batch);
    ATTND_RETURN_IF_ERROR(execution.status());
    for (int i = 0; i < count; ++i) {
      calls[i]->results = std::move(execution->results[i]);
      calls[i]->cost = execution->costs[i];
    }
    engine->peak_workspace_bytes = execution->peak_workspace_bytes;
    return absl::OkStatus();
  });
}

int64_t attnd_peak_workspace_bytes(const attnd_engine* engine) {
  return engine->peak_workspace_bytes;
}

const char* attnd_call_output(const attnd_call* call, int index, int* dtype, int* rank,
                              int64_t* shape, int* bnhd, const void** data) {
  if (index < 0 || index >= static_cast<int>(call->results.size())) return nullptr;
  const attnd::Result& result = call->results[index];
  *dtype = static_cast<int>(result.info.dtype);
  *rank = result.info.shape.rank;
  for (int i = 0; i < 4; ++i) shape[i] = result.info.shape[i];
  *bnhd = result.info.layout == attnd::Layout::kBNHD ? 1 : 0;
  *data = result.view.data;
  return result.info.name.c_str();
}
