// What proves the libraries that compute part of a primitive on a device.
#pragma once

#include <span>

#include "absl/strings/string_view.h"
#include "kernels/device/stream.h"
#include "kernels/engine/self_test.h"

namespace attnd {

struct LibraryTest {
  const char* name;  // of the library, "cuBLASLt", as CudaLibraryOf knows it
  const char* part;  // of it that a failure switches off: all, or one of CudaOptions
  const char* row;   // "matmul (cuBLASLt)": the primitive of its rows
  // Launches what a device may leave to the library, all of one primitive.
  void (*launch)(Device& device, Stream& stream);
};

std::span<const LibraryTest> LibraryTests();

// The test whose rows have this primitive. Null: there is none.
const LibraryTest* LibraryTestOf(absl::string_view row);

// Adds a row for each dtype. Takes seconds.
void RunLibraryTest(const LibraryTest& test, Device& device, Device& reference,
                    SelfTestReport* report);

}  // namespace attnd
