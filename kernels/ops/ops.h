// All that a method may call: primitives over ragged tensors, with a sticky status.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/stream.h"
#include "kernels/ops/attend.h"
#include "kernels/ops/pattern.h"
#include "kernels/ops/scan.h"
#include "kernels/ops/tape.h"
#include "kernels/ops/tensor.h"

namespace attnd {

// Each call launches once for the whole list of problems and returns at once with new tensors.
// Errors are sticky: the first failure is kept in status(), later calls return empty tensors, so a
// method reads like its formula. What a caller can get wrong is refused earlier, by Check and Plan;
// what is checked here are the contracts of the primitives. Single-threaded.
// On a dry stream nothing is computed and tensors have no data: that is a plan.
class Ops {
 public:
  // `tape` null: nothing is recorded. `patterns` null: patterns are built anew each time.
  Ops(Stream& stream, Tape* tape, PatternCache* patterns = nullptr);

  AttendOut Attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendParams& params);
  ScanOut Scan(const Tensor& q, const Tensor& k, const Tensor& v, const ScanParams& params,
               const ScanRows& rows);
  // a + b, elementwise; equal shapes and dtype. Layout of a.
  Tensor Add(const Tensor& a, const Tensor& b);

  // What one batch row sees. On a dry stream only the counts of `source` are used.
  AttendRow Row(int64_t nq, int64_t nk, const PatternSource& source);

  // Fresh memory, one dense array a problem.
  Tensor Empty(DType dtype, const std::vector<Shape>& shapes, const std::vector<Layout>& layouts);

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status);  // keeps the first
  Stream& stream() { return stream_; }
  Tape* tape() { return tape_; }
  // While false, calls are not recorded (gradient rules run so).
  void set_recording(bool on) { recording_ = on; }

 private:
  // A primitive over q, k, v that gives out and lse: checks, memory, launch, tape.
  template <class Kind>
  std::pair<Tensor, Tensor> Launch(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const typename Kind::Params& params,
                                   const std::vector<std::vector<typename Kind::Row>>& rows);
  bool Records(std::initializer_list<const Tensor*> inputs) const;

  Stream& stream_;
  Tape* const tape_;
  PatternCache* const patterns_;
  absl::Status status_;
  bool recording_ = true;
};

}  // namespace attnd
