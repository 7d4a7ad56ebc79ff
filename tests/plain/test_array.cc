#include "tests/plain/test_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace attnd::testing {
namespace {

constexpr size_t kGuard = 256;
constexpr std::byte kUnwritten{0xFF};

// Offsets of the elements in bytes, row-major.
std::vector<size_t> Offsets(const View& view) {
  std::vector<size_t> offsets;
  ForEachIndex(view.shape, [&](const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (int i = 0; i < view.shape.rank; ++i) at += index[i] * view.stride[i];
    offsets.push_back(static_cast<size_t>(at * SizeOf(view.dtype)));
  });
  return offsets;
}

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TestArray::TestArray(DType dtype, const Shape& shape, Memory memory) {
  view_ = DenseView(nullptr, dtype, shape);
  const int last = shape.rank - 1;
  int64_t elements = shape.size();
  if (memory == Memory::kPitched && shape.rank >= 2) {
    const int64_t pitch = shape[last] + 5;
    elements = pitch;
    for (int i = last - 1; i >= 0; --i) {
      view_.stride[i] = elements;
      elements *= shape[i];
    }
  } else if (memory == Memory::kTransposed && shape.rank >= 2) {
    view_.stride[last] = shape[last - 1];
    view_.stride[last - 1] = 1;
  } else if (memory == Memory::kTransposed && shape.rank == 1) {
    view_.stride[0] = 3;
    elements *= 3;
  }
  const size_t bytes = static_cast<size_t>(elements * SizeOf(dtype));
  // One element past the alignment of the vector: aligned to the element only.
  const size_t shift = kGuard + static_cast<size_t>(SizeOf(dtype));
  memory_ = std::make_shared<std::vector<std::byte>>(bytes + shift + kGuard, kUnwritten);
  view_.data = memory_->data() + shift;
}

TestArray TestArray::Random(unsigned seed, DType dtype, const Shape& shape, Memory memory,
                            double low, double high) {
  TestArray array(dtype, shape, memory);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  PlainArray values(shape);
  for (double& x : values.values) {
    x = dtype == DType::kI32 ? std::floor(uniform(random)) : uniform(random);
  }
  array.Write(values);
  return array;
}

std::vector<std::byte> TestArray::Bytes() const {
  std::vector<std::byte> bytes;
  for (size_t offset : Offsets(view_)) {
    const std::byte* at = static_cast<const std::byte*>(view_.data) + offset;
    bytes.insert(bytes.end(), at, at + SizeOf(view_.dtype));
  }
  return bytes;
}

bool TestArray::GuardsIntact() const {
  std::vector<std::byte> rest = *memory_;
  const size_t first = static_cast<size_t>(static_cast<std::byte*>(view_.data) - memory_->data());
  for (size_t offset : Offsets(view_)) {
    std::memset(rest.data() + first + offset, 0xFF, SizeOf(view_.dtype));
  }
  return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == kUnwritten; });
}

void RunOn(Device& device, const std::function<DeviceStatus(Stream&)>& call, Planned planned) {
  Stream dry(device, nullptr);
  ASSERT_TRUE(call(dry).ok());
  BufferPool pool(/*retain_bytes=*/0, /*poison=*/true);
  Stream stream(device, &pool);
  const DeviceStatus status = call(stream);
  ASSERT_TRUE(status.ok()) << status.text();
  if (planned == Planned::kExactly) {
    EXPECT_EQ(stream.workspace().peak_bytes(), dry.workspace().peak_bytes());
  } else {
    EXPECT_LE(stream.workspace().peak_bytes(), dry.workspace().peak_bytes());
    // Small ones are planned with more than they store.
    EXPECT_LE(dry.workspace().peak_bytes(), 16 * stream.workspace().peak_bytes() + (16 << 20));
  }
}

void ExpectNoWorse(const PlainArray& ours, const PlainArray& plain, const PlainArray& truth,
                   double slack) {
  ASSERT_EQ(ours.shape, truth.shape);
  double worst = 0;
  for (size_t i = 0; i < truth.values.size(); ++i) {
    const double error = std::fabs(plain.values[i] - truth.values[i]);
    if (std::isfinite(error)) worst = std::max(worst, error);
  }
  ExpectNear(ours, truth, 0, 2 * worst + slack);
}

void ExpectNear(const PlainArray& ours, const PlainArray& truth, double relative, double absolute) {
  ASSERT_EQ(ours.shape, truth.shape);
  int reported = 0;
  for (size_t i = 0; i < truth.values.size() && reported < 5; ++i) {
    const double a = ours.values[i], b = truth.values[i];
    if (Same(a, b)) continue;
    const bool finite = std::isfinite(a) && std::isfinite(b);
    if (finite && std::fabs(a - b) <= absolute + relative * std::fabs(b)) continue;
    ADD_FAILURE() << "element " << i << " is " << a << ", should be " << b;
    ++reported;
  }
}

}  // namespace attnd::testing
