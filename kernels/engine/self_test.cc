#include "kernels/engine/self_test.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "kernels/engine/comparing_device.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/library_test.h"
#include "kernels/engine/random_array.h"
#include "kernels/engine/self_test_calls.h"
#include "kernels/engine/self_test_sizes.h"
#include "kernels/method/registry.h"

namespace attnd {
namespace {

// In the order of Launch.
constexpr const char* kPrimitives[] = {"attend",
                                       "attend_grad",
                                       "merge",
                                       "merge_grad",
                                       "scan",
                                       "scan_grad",
                                       "matmul",
                                       "elementwise",
                                       "feature_rows",
                                       "random_features",
                                       "random_features_grad",
                                       "reduce",
                                       "softmax",
                                       "cumulative",
                                       "layer_norm",
                                       "layer_norm_grad",
                                       "pool",
                                       "depthwise_conv",
                                       "depthwise_conv_grad",
                                       "gather_rows",
                                       "scatter_rows",
                                       "sort",
                                       "fft"};
static_assert(std::size(kPrimitives) == std::variant_size_v<Launch>);

// Of each sequence: the first is whole; of many, most are short, as the emulated device needs them.
std::vector<int32_t> LengthsOf(const TestCall& test) {
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < test.B; ++b) {
    lengths.push_back(static_cast<int32_t>(b < 2 ? test.keys() - 11 * b : 3 * b));
  }
  return lengths;
}

absl::Status RunCall(Engine& engine, const TestCall& test, DType dtype, Direction direction) {
  const auto& methods = AllMethods();
  const auto found = std::find_if(methods.begin(), methods.end(), [&](const auto& method) {
    return method->info().id == test.method;
  });
  if (found == methods.end()) return absl::InternalError(test.method);
  const MethodInfo& info = (*found)->info();
  Call call{.method = test.method, .options = test.options, .direction = direction};
  std::vector<std::unique_ptr<RandomArray>> arrays;
  const auto add = [&](const std::string& name, const Shape& shape) {
    arrays.push_back(
        std::make_unique<RandomArray>(dtype, shape, static_cast<unsigned>(arrays.size() + 1)));
    call.tensors[name] = arrays.back()->view;
  };
  const Shape queries = {test.B, test.H, test.N, test.D},
              keys = {test.B, test.Hkv, test.keys(), test.D},
              values = {test.B, test.Hkv, test.keys(), test.columns()},
              outs = {test.B, test.H, test.N, test.columns()};
  for (const char* name : {"q", "k", "v"}) {
    const bool takes = std::any_of(info.inputs.begin(), info.inputs.end(),
                                   [&](const TensorInfo& input) { return input.name == name; });
    if (takes && !(name[0] == 'k' && info.id == "routing")) {
      add(name, name[0] == 'q' ? queries : name[0] == 'k' ? keys : values);
    }
  }
  if (direction == Direction::kBackward) add("grad_out", outs);
  for (const auto& [name, shape] : test.tensors) add(name, shape);
  std::vector<int32_t> lengths = LengthsOf(test);
  // Methods of blocks want whole ones.
  if (info.support.lengths && test.N % 16 != 0) {
    call.tensors["kv_lengths"] = DenseView(lengths.data(), DType::kI32, {test.B});
  }
  auto plan = engine.MakePlan(call);
  if (!plan.ok()) return plan.status();
  Stream stream(engine.device(), &engine.device().memory());
  const Problem problem{*plan, call.tensors};
  return engine.Execute(stream, {&problem, 1}).status();
}

template <class... Args>
bool IsOneOf(size_t launch) {
  return ((launch == Launch(Args()).index()) || ...);
}

}  // namespace

bool HasComposition(size_t launch) {
  return !IsOneOf<AttendArgs, AttendGradArgs, MatMulArgs, ElementwiseArgs, ReduceArgs,
                  CumulativeArgs, GatherRowsArgs, ScatterRowsArgs, SortArgs, FftArgs>(launch);
}

std::span<const char* const> PrimitiveNames() { return kPrimitives; }

void Conclude(SelfTestReport* report) {
  report->failed.clear();
  report->failed_libraries.clear();
  for (const SelfTestRow& row : report->rows) {
    if (row.failure.empty()) continue;
    if (const LibraryTest* const test = LibraryTestOf(row.primitive); test != nullptr) {
      // Rows of one test stand together.
      if (report->failed_libraries.empty() || report->failed_libraries.back() != test->part) {
        report->failed_libraries.emplace_back(test->part);
      }
      continue;
    }
    const auto launch =
        static_cast<size_t>(std::ranges::find(kPrimitives, row.primitive) - kPrimitives);
    report->is_unusable = report->is_unusable || !HasComposition(launch);
    // Rows of one primitive stand together.
    if (report->failed.empty() || report->failed.back() != launch) {
      report->failed.push_back(launch);
    }
  }
}

SelfTestReport SelfTest(Device& device, Device& reference) {
  SelfTestReport report;
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<ComparingDevice>(device, reference));
  auto& comparing = static_cast<ComparingDevice&>(*devices[0]);
  Engine engine(std::move(devices));
  for (const TestCall& call : SelfTestCalls()) {
    if (!device.failure().empty()) break;
    for (const DType dtype : call.dtypes) {
      report.status.Update(RunCall(engine, call, dtype, Direction::kForward));
      if (!call.has_backward) continue;
      report.status.Update(RunCall(engine, call, dtype, Direction::kBackward));
    }
  }
  if (device.failure().empty()) {
    Stream stream(comparing, &comparing.memory());
    const DeviceStatus status = LaunchOtherSizes(comparing, stream);
    if (!status.ok()) report.status.Update(absl::InternalError(status.text()));
  }
  comparing.AddTo(&report);
  return report;
}

}  // namespace attnd
