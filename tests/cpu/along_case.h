// What the tests of reduce, softmax and cumulative share: arrays with an axis, run on a device.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/plain/test_array.h"

namespace attnd::testing {

struct AxisCase {
  Shape shape;
  int axis;
};

// Lengths 0, 1, 63, 64, 65 and primes; axes that are dense and not, one of several chunks of either
// kind; few and many columns.
inline const AxisCase kAxisCases[] = {
    {{3, 0, 5}, 1},
    {{0, 4}, 1},
    {{1}, 0},
    {{7, 1}, 1},
    {{63}, 0},
    {{5, 64}, 1},
    {{2, 3, 65}, 2},
    {{40, 17}, 1},
    {{3, 127, 31}, 1},
    {{131, 70}, 0},
    {{2, 3, 67, 33}, 2},
    {{2, 3, 4, 67}, 1},
    {{2, 1, 3, 1, 2, 9}, 2},
    {{1, 8221, 5}, 1},
    {{4, 4099}, 1},
    {{2, 131101}, 1},
};

// One problem, or a list: arrays in, arrays out. `call` runs the primitive on the views.
using AxisCall = std::function<DeviceStatus(Device&, Stream&, int axis, std::span<const View> x,
                                            std::span<const View> out)>;

inline std::vector<View> ViewsOf(const std::vector<TestArray>& arrays) {
  std::vector<View> views;
  for (const TestArray& array : arrays) views.push_back(array.view());
  return views;
}

// Expects that a list of problems of every length takes as many launches as one problem of the
// longest, `launches` on the CPU, and that nothing changes a bit: the list, the threads, another
// run.
inline void ExpectSameAloneAndListed(const std::string& isa, const AxisCall& call, DType out_dtype,
                                     const std::function<Shape(Shape)>& out_shape, int axis,
                                     int64_t launches) {
  std::vector<TestArray> x;
  std::vector<std::vector<TestArray>> results(4);
  for (int64_t n : {0, 1, 63, 64, 65, 701, 9001}) {
    Shape shape = {3, 5, 21};
    shape.dims[axis] = n;
    x.push_back(TestArray::Random(static_cast<unsigned>(n), DType::kF32, shape));
    for (auto& list : results) list.emplace_back(out_dtype, out_shape(shape));
  }
  int64_t longest = 0;
  for (size_t p = 0; p < x.size(); ++p) {
    Device& device = CpuOf(isa, 2);
    const int64_t before = device.launches();
    RunOn(device, [&](Stream& stream) {
      const View in = x[p].view(), out = results[0][p].view();
      return call(device, stream, axis, {&in, 1}, {&out, 1});
    });
    longest = device.launches() - before;
  }
  // Other devices count what they were asked for, not what they made of it.
  if (CpuOf(isa, 2).info().name == "cpu") {
    EXPECT_EQ(longest, launches);
  }
  for (size_t run = 1; run < results.size(); ++run) {
    Device& device = CpuOf(isa, run == 1 ? 1 : 2);
    const int64_t before = device.launches();
    RunOn(device, [&](Stream& stream) {
      return call(device, stream, axis, ViewsOf(x), ViewsOf(results[run]));
    });
    EXPECT_EQ(device.launches() - before, longest);
    for (size_t p = 0; p < x.size(); ++p) {
      EXPECT_EQ(results[run][p].Bytes(), results[0][p].Bytes()) << "problem " << p;
      EXPECT_TRUE(results[run][p].GuardsIntact());
    }
  }
}

}  // namespace attnd::testing
