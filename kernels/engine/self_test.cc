#include "kernels/engine/self_test.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/device/host_launch.h"
#include "kernels/engine/engine.h"
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

struct TestCall {
  const char* method;
  OptionMap options;
  int64_t N = 75;
  std::map<std::string, Shape> tensors = {};  // besides q, k, v
};

constexpr int64_t kB = 2, kH = 2, kD = 40;

// Together they launch every primitive (tests/engine/self_test_test.cc), with lengths where the
// method takes them.
std::vector<TestCall> Calls() {
  const auto named = [](const char* value) { return OptionValue(std::string(value)); };
  const auto whole = [](int64_t value) { return OptionValue(value); };
  const Shape memory = {kB, kH, 24, kD};
  return {
      {"softmax", {{"causal", true}}},
      {"local", {{"window_left", whole(9)}, {"causal", true}}},
      {"linear_attention", {{"causal", true}, {"feature_map", named("softmax")}}},
      {"performer", {}},
      {"fast_weights", {}},
      {"fnet", {}},
      {"nystromformer", {{"num_landmarks", whole(16)}}, 128, {{"conv_weight", {kH, 3}}}},
      {"sinkhorn", {{"block_size", whole(16)}, {"sort", named("topk")}}, 64},
      {"routing", {}},
      {"reformer", {{"chunk_len", whole(16)}}, 128},
      {"memory_compressed", {}},
      {"compressive",
       {{"compression", named("max")}, {"return_memory", true}, {"mem_len", whole(24)}},
       75,
       {{"mem_k", memory}, {"mem_v", memory}}},
      {"mlp_mixer", {}, 64},
  };
}

// Differences that rounding explains, in parts of a tensor's largest number: sums of a few hundred
// terms in another order, of inputs that are stored in this type.
double Tolerance(DType dtype) {
  return dtype == DType::kF16 ? 6e-3 : dtype == DType::kBF16 ? 5e-2 : 2e-4;
}

double NumberAt(const View& view, const std::byte* data, int64_t at) {
  const std::byte* const from = data + at * SizeOf(view.dtype);
  const auto bits = [&](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (view.dtype) {
    case DType::kF32:
      return bits(0.0f);
    case DType::kI32:
      return bits(int32_t{0});
    case DType::kU8:
      return bits(uint8_t{0});
    case DType::kBF16: {
      const uint32_t word = static_cast<uint32_t>(bits(uint16_t{0})) << 16;
      float value;
      std::memcpy(&value, &word, sizeof(value));
      return value;
    }
    case DType::kF16: {
      const uint16_t half = bits(uint16_t{0});
      const int exponent = half >> 10 & 31, fraction = half & 1023;
      const double size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                          : exponent == 0 ? std::ldexp(fraction, -24)
                                          : std::ldexp(1024 + fraction, exponent - 25);
      return half >> 15 ? -size : size;
    }
  }
  return NAN;
}

// Terms of sums are of order 1 here: a tensor whose numbers are all below this holds what is left
// where they cancel.
constexpr double kLeastNumber = 1e-2;

// The largest difference of two arrays over the largest finite number of `right`.
double Difference(const View& view, const std::byte* left, const std::byte* right) {
  double largest = 0, worst = 0;
  for (int64_t e = 0; e < view.shape.size(); ++e) {
    int64_t at = 0, rest = e;
    for (int i = view.shape.rank - 1; i >= 0; --i) {
      at += rest % view.shape[i] * view.stride[i];
      rest /= view.shape[i];
    }
    const double a = NumberAt(view, left, at), b = NumberAt(view, right, at);
    if (a == b || (std::isnan(a) && std::isnan(b))) {
      if (std::isfinite(b)) largest = std::max(largest, std::fabs(b));
      continue;
    }
    if (!std::isfinite(a) || !std::isfinite(b)) return INFINITY;
    largest = std::max(largest, std::fabs(b));
    worst = std::max(worst, std::fabs(a - b));
  }
  return worst == 0 ? 0 : worst / std::max(largest, kLeastNumber);
}

// The processor, beside which every launch also runs on the device under test.
class ComparingDevice final : public Device {
 public:
  using Rows = std::map<std::pair<size_t, std::string>, SelfTestRow>;
  ComparingDevice(Device& tested, Device& reference, Rows* rows, bool* lacked_memory)
      : tested_(tested), reference_(reference), rows_(rows), lacked_memory_(lacked_memory) {}

  const DeviceInfo& info() const override { return reference_.info(); }
  BufferPool& memory() override { return reference_.memory(); }

  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (stream.is_dry()) return reference_.Run(stream, std::move(launch));
    std::vector<View> views;
    ForEachView(launch, [&](const View& view) {
      if (view.given() && view.shape.size() > 0) views.push_back(view);
    });
    std::string dtype = views.empty() ? "float32" : Name(views[0].dtype);
    SelfTestRow& row = (*rows_)[{launch.index(), dtype}];
    row.primitive = kPrimitives[launch.index()];
    row.dtype = dtype;
    std::vector<HostStretch> stretches;
    std::vector<std::vector<std::byte>> results;
    const bool ran = row.failure.empty() && tested_.failure().empty() &&
                     RunTested(launch, &row, &stretches, &results);
    DeviceStatus status = reference_.Run(stream, std::move(launch));
    if (!ran || !status.ok()) return status;
    ++row.launches;
    for (const View& view : views) {
      for (size_t i = 0; i < stretches.size(); ++i) {
        if (view.data < stretches[i].begin || view.data >= stretches[i].end) continue;
        const std::byte* const ours =
            results[i].data() + (view.As<std::byte>() - stretches[i].begin);
        const double error = Difference(view, ours, view.As<std::byte>());
        row.worst_error = std::max(row.worst_error, error);
        if (error > Tolerance(Widest(views))) {
          row.failure =
              absl::StrCat("differs from the processor by ", error,
                           " of the largest number, allowed is ", Tolerance(Widest(views)));
        }
      }
    }
    return status;
  }

  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    return reference_.Upload(stream, destination, spans, std::move(source));
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    return reference_.Download(stream, source, bytes);
  }

 private:
  // The type that rounds most.
  static DType Widest(const std::vector<View>& views) {
    DType worst = DType::kF32;
    for (const View& view : views) {
      if (IsFloat(view.dtype) && Tolerance(view.dtype) > Tolerance(worst)) worst = view.dtype;
    }
    return worst;
  }

  bool RunTested(Launch launch, SelfTestRow* row, std::vector<HostStretch>* stretches,
                 std::vector<std::vector<std::byte>>* results) {
    Stream own(tested_, &tested_.memory());
    DeviceStatus status = MoveToDevice(own, &launch, stretches);
    if (status.ok()) status = tested_.Run(own, std::move(launch));
    if (status.code() == DeviceStatus::Code::kDeclined) {
      row->is_declined = true;
      return false;
    }
    for (const HostStretch& stretch : *stretches) {
      auto& bytes = results->emplace_back(static_cast<size_t>(stretch.end - stretch.begin));
      if (status.ok()) status = tested_.Download(own, stretch.buffer->data(), bytes);
    }
    const DeviceStatus waited = own.Wait();
    if (status.ok()) status = waited;
    if (!status.ok()) row->failure = status.text();
    if (status.code() == DeviceStatus::Code::kNoMemory) *lacked_memory_ = true;
    return status.ok();
  }

  Device& tested_;
  Device& reference_;
  Rows* const rows_;
  bool* const lacked_memory_;
};

// Random numbers of a dtype, with what they lie in.
struct Array {
  std::vector<std::byte> bytes;
  View view;
};

Array RandomArray(DType dtype, const Shape& shape, unsigned seed) {
  std::minstd_rand random(seed);
  std::normal_distribution<float> normal;
  Array array;
  array.bytes.resize(static_cast<size_t>(shape.size() * SizeOf(dtype)));
  for (int64_t e = 0; e < shape.size(); ++e) {
    // Few enough bits to be exact in every type.
    const float value = std::round(normal(random) * 32) / 32;
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    uint16_t half = static_cast<uint16_t>(word >> 16);
    if (dtype == DType::kF16 && value != 0) {
      half = static_cast<uint16_t>((word >> 16 & 0x8000) | (((word >> 23 & 255) - 112) << 10) |
                                   (word >> 13 & 1023));
    }
    std::byte* const to = array.bytes.data() + e * SizeOf(dtype);
    if (dtype == DType::kF32) {
      std::memcpy(to, &value, sizeof(value));
    } else {
      std::memcpy(to, &half, sizeof(half));
    }
  }
  array.view = DenseView(array.bytes.data(), dtype, shape);
  return array;
}

absl::Status RunCall(Engine& engine, const TestCall& test, DType dtype, Direction direction) {
  const auto& methods = AllMethods();
  const auto found = std::find_if(methods.begin(), methods.end(), [&](const auto& method) {
    return method->info().id == test.method;
  });
  if (found == methods.end()) return absl::InternalError(test.method);
  const MethodInfo& info = (*found)->info();
  Call call{.method = test.method, .options = test.options, .direction = direction};
  std::vector<std::unique_ptr<Array>> arrays;
  const auto add = [&](const std::string& name, const Shape& shape) {
    arrays.push_back(std::make_unique<Array>(
        RandomArray(dtype, shape, static_cast<unsigned>(arrays.size() + 1))));
    call.tensors[name] = arrays.back()->view;
  };
  const Shape rows = {kB, kH, test.N, kD};
  for (const char* name : {"q", "k", "v"}) {
    const bool takes = std::any_of(info.inputs.begin(), info.inputs.end(),
                                   [&](const TensorInfo& input) { return input.name == name; });
    if (takes && !(name[0] == 'k' && info.id == "routing")) add(name, rows);
  }
  if (direction == Direction::kBackward) add("grad_out", rows);
  for (const auto& [name, shape] : test.tensors) add(name, shape);
  std::vector<int32_t> lengths = {static_cast<int32_t>(test.N), static_cast<int32_t>(test.N - 11)};
  if (info.support.lengths && test.N % 16 != 0) {
    call.tensors["kv_lengths"] = DenseView(lengths.data(), DType::kI32, {kB});
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

using Clock = std::chrono::steady_clock;
// Adds to the report what follows from its rows and from what `device` has become since `start`.
void Finish(const Device& device, Clock::time_point start, bool lacked_memory,
            SelfTestReport* report) {
  Conclude(report);
  const bool has_failed = !device.failure().empty();
  report->is_unusable = report->is_unusable || has_failed;
  report->is_lasting = report->is_lasting && report->status.ok() && !lacked_memory && !has_failed;
  report->seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

bool HasComposition(size_t launch) {
  return !IsOneOf<AttendArgs, AttendGradArgs, MatMulArgs, ElementwiseArgs, ReduceArgs,
                  CumulativeArgs, GatherRowsArgs, ScatterRowsArgs, SortArgs, FftArgs>(launch);
}

std::span<const char* const> PrimitiveNames() { return kPrimitives; }

void Conclude(SelfTestReport* report) {
  report->failed.clear();
  report->has_failed_library = false;
  for (const SelfTestRow& row : report->rows) {
    if (row.failure.empty()) continue;
    if (row.primitive == kLibraryProducts) {
      report->has_failed_library = true;
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
  const Clock::time_point start = Clock::now();
  SelfTestReport report;
  ComparingDevice::Rows rows;
  bool lacked_memory = false;
  {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::make_unique<ComparingDevice>(device, reference, &rows, &lacked_memory));
    Engine engine(std::move(devices));
    for (const TestCall& call : Calls()) {
      if (!device.failure().empty()) break;
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
          report.status.Update(RunCall(engine, call, dtype, direction));
        }
      }
    }
  }
  // In the order of Launch.
  for (auto& [key, row] : rows) report.rows.push_back(std::move(row));
  Finish(device, start, lacked_memory, &report);
  return report;
}

void TestLargeProducts(Device& device, Device& reference, SelfTestReport* report) {
  const Clock::time_point start = Clock::now();
  bool lacked_memory = false;
  // 2^30 products; all extents differ, so that an exchange of two shows.
  constexpr int64_t M = 1024, N = 2048, K = 512;
  const auto stored = [](DType dtype, int64_t rows, int64_t columns, bool by_columns) {
    Array array = RandomArray(dtype, {rows, columns}, static_cast<unsigned>(rows + columns));
    if (by_columns) array.view.stride[0] = 1, array.view.stride[1] = rows;
    return array;
  };
  ComparingDevice::Rows found;
  ComparingDevice comparing(device, reference, &found, &lacked_memory);
  Stream stream(comparing, &reference.memory());
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const bool a_by_columns : {false, true}) {
      for (const bool b_by_columns : {false, true}) {
        const Array a = stored(dtype, M, K, a_by_columns), b = stored(dtype, K, N, b_by_columns);
        // Each order of the operands with one of the result, of either dtype.
        const Array out =
            stored(a_by_columns ? dtype : DType::kF32, M, N, a_by_columns == b_by_columns);
        // Errors of the device are in its row; the processor's would be those of SelfTest.
        static_cast<void>(comparing.Run(
            stream,
            MatMulArgs{.alpha = 0.5, .problems = {{.a = a.view, .b = b.view, .out = out.view}}}));
      }
    }
  }
  for (auto& [key, row] : found) {
    row.primitive = kLibraryProducts;
    report->rows.push_back(std::move(row));
  }
  Finish(device, start, lacked_memory, report);
}

}  // namespace attnd
