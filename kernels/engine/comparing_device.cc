#include "kernels/engine/comparing_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

// Differences that rounding explains, in parts of a tensor's largest number: sums of a few hundred
// terms in another order, of results that are stored in this type.
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

// What rounding took from lse, which is as uncertain as lse itself: numbers of order 1.
std::set<const void*> LowsOf(const Launch& launch) {
  std::set<const void*> lows;
  const auto add = [&](const auto* args) {
    if (args == nullptr) return;
    for (const auto& p : args->problems) lows.insert(p.lse_low.data);
  };
  add(std::get_if<AttendArgs>(&launch));
  add(std::get_if<MergeArgs>(&launch));
  return lows;
}

// The largest difference of two arrays over the largest finite number of `right`, or over `least`.
double Difference(const View& view, const std::byte* left, const std::byte* right, double least) {
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
  return worst == 0 ? 0 : worst / std::max(largest, least);
}

// The float type that rounds most; without one, the type of the first view.
DType TypeOf(const std::vector<View>& views) {
  if (views.empty()) return DType::kF32;
  DType worst = views[0].dtype;
  for (const View& view : views) {
    if (!IsFloat(view.dtype)) continue;
    if (!IsFloat(worst) || Tolerance(view.dtype) > Tolerance(worst)) worst = view.dtype;
  }
  return worst;
}

}  // namespace

DeviceStatus ComparingDevice::Run(Stream& stream, Launch launch) {
  if (stream.is_dry()) return reference_.Run(stream, std::move(launch));
  std::vector<View> views;
  ForEachView(launch, [&](const View& view) {
    if (view.given() && view.shape.size() > 0) views.push_back(view);
  });
  const std::set<const void*> lows = LowsOf(launch);
  const std::string dtype = Name(TypeOf(views));
  SelfTestRow& row = rows_[{launch.index(), dtype}];
  row.primitive = PrimitiveNames()[launch.index()];
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
      const std::byte* const ours = results[i].data() + (view.As<std::byte>() - stretches[i].begin);
      const double error =
          Difference(view, ours, view.As<std::byte>(), lows.contains(view.data) ? 1 : kLeastNumber);
      row.worst_error = std::max(row.worst_error, error);
      // A float32 result of 16-bit tensors is no less accurate than others.
      if (const double allowed = Tolerance(view.dtype); error > allowed) {
        row.failure = absl::StrCat("differs from the processor by ", error,
                                   " of the largest number of a tensor of ", Name(view.dtype),
                                   ", allowed is ", allowed);
      }
    }
  }
  return status;
}

bool ComparingDevice::RunTested(Launch launch, SelfTestRow* row,
                                std::vector<HostStretch>* stretches,
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
  if (status.code() == DeviceStatus::Code::kNoMemory) lacked_memory_ = true;
  return status.ok();
}

void ComparingDevice::AddTo(SelfTestReport* report, const char* name) {
  for (auto& [key, row] : rows_) {
    if (name != nullptr) row.primitive = name;
    report->rows.push_back(std::move(row));
  }
  rows_.clear();
  Conclude(report);
  const bool has_failed = !tested_.failure().empty();
  report->is_unusable = report->is_unusable || has_failed;
  report->is_lasting = report->is_lasting && report->status.ok() && !lacked_memory_ && !has_failed;
  report->seconds += std::chrono::duration<double>(Clock::now() - start_).count();
}

}  // namespace attnd
