// Results of self-tests in files, so that a server proves a device once and not at every start.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/self_test.h"

namespace attnd {

// One file a device. A result counts for the program that found it, by the build id of its machine
// code, its version, and the device as `device` names it (CudaDevices::identities); for others the
// device must be tested, which replaces the file. Thread safe; processes may share the folder.
class SelfTestCache {
 public:
  // Errors of an empty folder: FAILED_PRECONDITION from every call.
  SelfTestCache(std::string folder, std::string version);

  // Errors: NOT_FOUND: there is no result, or that of another program or device. Others, in one
  // line: a file that cannot be used, because it is damaged, too large, or not a file of this user.
  absl::StatusOr<SelfTestReport> Find(const std::string& device) const;

  // Makes the folder where it is missing, and replaces the file at once: a reader never sees a part
  // of it. REQUIRES: report.is_lasting. Errors, in one line: it cannot be written.
  absl::Status Keep(const std::string& device, const SelfTestReport& report) const;

  // Of the device, for tests.
  std::string PathOf(const std::string& device) const;

 private:
  absl::Status Check() const;

  const std::string folder_, version_;
  const std::string program_;  // build id; empty: the program has none
};

}  // namespace attnd
