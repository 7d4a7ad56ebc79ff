#include "tests/plain/plain.h"

#include <cassert>
#include <cmath>
#include <cstring>

namespace attnd::testing {
namespace {

int64_t OffsetOf(const View& view, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (int i = 0; i < view.shape.rank; ++i) offset += index[i] * view.stride[i];
  return offset * SizeOf(view.dtype);
}

double FromBits(DType dtype, const char* at) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  if (dtype == DType::kI32) {
    int32_t value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (dtype == DType::kBF16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

// The nearest number of a half type, ties to even.
uint16_t ToBits(DType dtype, double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int digits = dtype == DType::kF16 ? 10 : 7, bias = dtype == DType::kF16 ? 15 : 127;
  const uint16_t infinity = dtype == DType::kF16 ? 0x7C00 : 0x7F80;
  if (std::isnan(value)) return sign | infinity | (1 << (digits - 1));
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // In steps of the format at this exponent; nearbyint rounds ties to even.
  const double steps = std::nearbyint(std::ldexp(magnitude, digits - exponent));
  // A carry out of the digits goes into the exponent.
  const auto bits = static_cast<int64_t>(steps) + (int64_t{exponent + bias - 1} << digits);
  return static_cast<uint16_t>(sign | (bits >= infinity ? infinity : bits));
}

}  // namespace

double& PlainArray::At(const std::vector<int64_t>& index) {
  int64_t offset = 0;
  // Leading dimensions that the array lacks repeat.
  const size_t extra = index.size() - static_cast<size_t>(shape.rank);
  for (int i = 0; i < shape.rank; ++i) {
    offset = offset * shape[i] + (shape[i] == 1 ? 0 : index[extra + static_cast<size_t>(i)]);
  }
  return values.at(static_cast<size_t>(offset));
}

void ForEachIndex(const Shape& shape,
                  const std::function<void(const std::vector<int64_t>&)>& visit) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank), 0);
  for (int64_t n = 0; n < shape.size(); ++n) {
    visit(index);
    for (int i = shape.rank - 1; i >= 0 && ++index[i] == shape[i]; --i) index[i] = 0;
  }
}

PlainArray ReadView(const View& view) {
  if (!view.given()) return {};
  PlainArray array(view.shape);
  size_t n = 0;
  ForEachIndex(view.shape, [&](const std::vector<int64_t>& index) {
    array.values[n++] = FromBits(view.dtype, view.As<char>() + OffsetOf(view, index));
  });
  return array;
}

void WriteView(const PlainArray& array, const View& view) {
  if (!view.given()) return;
  assert(array.shape == view.shape);
  size_t n = 0;
  ForEachIndex(view.shape, [&](const std::vector<int64_t>& index) {
    char* at = view.As<char>() + OffsetOf(view, index);
    const double value = array.values[n++];
    if (view.dtype == DType::kF32) {
      const auto narrow = static_cast<float>(value);
      std::memcpy(at, &narrow, 4);
    } else if (view.dtype == DType::kI32) {
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(at, &narrow, 4);
    } else {
      const uint16_t bits = ToBits(view.dtype, value);
      std::memcpy(at, &bits, 2);
    }
  });
}

void WriteLse(const PlainArray& lse, const View& rounded, const View& low) {
  WriteView(lse, rounded);
  PlainArray rest(lse.shape);
  for (size_t i = 0; i < lse.values.size(); ++i) {
    const double near = static_cast<float>(lse.values[i]);
    if (std::isfinite(near)) rest.values[i] = lse.values[i] - near;
  }
  WriteView(rest, low);
}

PlainArray ReadLse(const View& rounded, const View& low) {
  PlainArray lse = ReadView(rounded);
  if (!low.given()) return lse;
  const PlainArray rest = ReadView(low);
  for (size_t i = 0; i < lse.values.size(); ++i) lse.values[i] += rest.values[i];
  return lse;
}

}  // namespace attnd::testing
