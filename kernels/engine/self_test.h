// What a device proves before it is trusted: its kernels against those of the processor.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/device.h"

namespace attnd {

// One primitive with one dtype.
struct SelfTestRow {
  std::string primitive;   // "attend", "scan_grad", ..., "matmul (cuBLASLt)": by a library
  std::string dtype;       // the one of its tensors that rounds most
  int launches = 0;        // that were compared
  double worst_error = 0;  // largest difference over the largest number of its tensor
  std::string failure;     // empty: it agrees with the processor
  bool is_declined = false;
};

struct SelfTestReport {
  std::vector<SelfTestRow> rows;
  std::vector<size_t> failed;  // alternatives of Launch: those of a row with a failure
  // What no composition replaces has failed: the device is of no use.
  bool is_unusable = false;
  // Another run would find the same: memory was not short, the device did not fail for good, the
  // methods ran.
  bool is_lasting = true;
  // Those of a row of engine/library_test.h with a failure ("cuBLASLt"): own kernels must serve
  // instead of them.
  std::vector<std::string> failed_libraries;
  double seconds = 0;
  absl::Status status;      // an error of the methods themselves, on the processor
  std::string cached_from;  // the date of the run that it was read from; empty: of this process
};

// The primitives that Launch has, by index.
std::span<const char* const> PrimitiveNames();

// Sets `failed` and `failed_libraries` by the rows, and is_unusable where one of them has no
// composition.
void Conclude(SelfTestReport* report);

// Whether ops composes launches of this alternative of Launch where a device declines them.
bool HasComposition(size_t launch);

// Runs some methods, forward and backward, on small ragged problems of every float type, and some
// primitives on other sizes: self_test_calls.h, self_test_sizes.h. Each launch of them runs on
// `device` and on `reference`, the processor, whose results go on. Takes seconds.
SelfTestReport SelfTest(Device& device, Device& reference);

}  // namespace attnd
