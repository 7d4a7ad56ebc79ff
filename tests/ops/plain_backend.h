// A backend in plain double loops: what the tests of tape and engine run on. float32 storage only.
#pragma once

#include "kernels/backend.h"

namespace attnd::testing {

struct BackendCalls {
  int attend = 0, attend_grad = 0, scan = 0, scan_grad = 0, add = 0;
  bool operator==(const BackendCalls&) const = default;
};

class PlainBackend : public Backend {
 public:
  PlainBackend() { info_.name = info_.description = "plain"; }

  const DeviceInfo& info() const override { return info_; }
  absl::Status Attend(Stream& stream, const AttendArgs& args) override;
  absl::Status AttendGrad(Stream& stream, const AttendGradArgs& args) override;
  absl::Status Scan(Stream& stream, const ScanArgs& args) override;
  absl::Status ScanGrad(Stream& stream, const ScanGradArgs& args) override;
  absl::Status Add(Stream& stream, std::span<const AddProblem> problems) override;
  absl::Status Gather(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans) override;

  // On streams that are not dry.
  const BackendCalls& calls() const { return calls_; }
  int64_t launches() const override {
    return calls_.attend + calls_.attend_grad + calls_.scan + calls_.scan_grad + calls_.add;
  }

 private:
  DeviceInfo info_;
  BackendCalls calls_;
};

}  // namespace attnd::testing
