// What a device proves before it is trusted: its kernels against those of the processor.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/device.h"

namespace attnd {

// One primitive with one dtype.
struct SelfTestRow {
  std::string primitive;   // "attend", "scan_grad", ...
  std::string dtype;       // of its first view
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
  // A row of TestLargeProducts has a failure: own kernels must serve instead of the library.
  bool library_failed = false;
  double seconds = 0;
  absl::Status status;  // an error of the methods themselves, on the processor
};

// Whether ops composes launches of this alternative of Launch where a device declines them.
bool HasComposition(size_t launch);

// Runs some methods, forward and backward, on small ragged problems of every float type. Each
// launch of them runs on `device` and on `reference`, the processor, whose results go on.
// Takes seconds.
SelfTestReport SelfTest(Device& device, Device& reference);

// The same for matmul of 16-bit matrices so large that a device may leave them to a library, in
// every order of their elements: a row for each dtype.
std::vector<SelfTestRow> TestLargeProducts(Device& device, Device& reference);

}  // namespace attnd
