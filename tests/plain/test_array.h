// Arrays for tests of primitives: any strides, guard zones, NaN in all memory that was not written.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device/stream.h"
#include "tests/plain/cpus.h"
#include "tests/plain/plain.h"

namespace attnd::testing {

// How elements lie in memory.
enum class Memory {
  kDense,
  kPitched,     // gaps between rows
  kTransposed,  // the last two axes swapped: the last stride is not 1
};

// An array between guard zones, aligned to its element only. Bytes outside of elements are 0xFF.
class TestArray {
 public:
  TestArray() = default;
  // Every element is NaN (int32: -1).
  TestArray(DType dtype, const Shape& shape, Memory memory = Memory::kDense);
  // Uniform in [low, high), rounded to dtype; int32: whole numbers.
  static TestArray Random(unsigned seed, DType dtype, const Shape& shape,
                          Memory memory = Memory::kDense, double low = -1, double high = 1);

  const View& view() const { return view_; }
  PlainArray Read() const { return ReadView(view_); }
  void Write(const PlainArray& array) { WriteView(array, view_); }
  // The elements in row-major order, for bitwise comparison.
  std::vector<std::byte> Bytes() const;
  bool GuardsIntact() const;

 private:
  std::shared_ptr<std::vector<std::byte>> memory_;
  View view_;
};

// Runs `call` on a stream whose fresh memory is NaN, after a dry run; expects success, and that the
// dry run counted the same workspace, or no less and not many times as much.
enum class Planned { kExactly, kAtLeast };
void RunOn(Device& device, const std::function<DeviceStatus(Stream&)>& call,
           Planned planned = Planned::kExactly);

// Expects |ours - truth| <= 2 max |plain - truth| + slack everywhere, with NaN and infinities
// equal. `plain` is the same formula in plain code of the kernel's dtype.
void ExpectNoWorse(const PlainArray& ours, const PlainArray& plain, const PlainArray& truth,
                   double slack);
// Expects |ours - truth| <= absolute + relative |truth|, with NaN and infinities equal.
void ExpectNear(const PlainArray& ours, const PlainArray& truth, double relative, double absolute);

}  // namespace attnd::testing
