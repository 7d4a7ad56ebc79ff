// A backend in plain double loops: what the tests of tape and engine run on. float32 storage only.
#pragma once

#include "kernels/backend.h"

namespace attnd::testing {

struct BackendCalls {
  int attend = 0, attend_grad = 0, scan = 0, scan_grad = 0, other = 0;
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
  absl::Status Merge(Stream& stream, const MergeArgs& args) override;
  absl::Status MergeGrad(Stream& stream, const MergeGradArgs& args) override;
  absl::Status MatMul(Stream& stream, const MatMulArgs& args) override;
  absl::Status Elementwise(Stream& stream, const ElementwiseArgs& args) override;
  absl::Status Reduce(Stream& stream, const ReduceArgs& args) override;
  absl::Status Softmax(Stream& stream, const SoftmaxArgs& args) override;
  absl::Status Cumulative(Stream& stream, const CumulativeArgs& args) override;
  absl::Status LayerNorm(Stream& stream, const LayerNormArgs& args) override;
  absl::Status Pool(Stream& stream, const PoolArgs& args) override;
  absl::Status DepthwiseConv(Stream& stream, const DepthwiseConvArgs& args) override;
  absl::Status DepthwiseConvGrad(Stream& stream, const DepthwiseConvGradArgs& args) override;
  absl::Status GatherRows(Stream& stream, const GatherRowsArgs& args) override;
  absl::Status ScatterRows(Stream& stream, const ScatterRowsArgs& args) override;
  absl::Status Sort(Stream& stream, const SortArgs& args) override;
  absl::Status RealFft2(Stream& stream, const FftArgs& args) override;
  absl::Status Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans) override;
  absl::Status Download(Stream& stream, const void* source, std::span<std::byte> bytes) override;

  // On streams that are not dry.
  const BackendCalls& calls() const { return calls_; }
  int64_t launches() const override {
    return calls_.attend + calls_.attend_grad + calls_.scan + calls_.scan_grad + calls_.other;
  }

 private:
  DeviceInfo info_;
  BackendCalls calls_;
};

}  // namespace attnd::testing
