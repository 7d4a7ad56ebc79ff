// Which sequences the library of a device attends to, and how it is asked to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/cudnn.h"
#include "kernels/device/attend.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class CudaDevice;

// A sequence as the library takes it: as many kv heads a call, with their query heads, as a slice
// of time allows. The calls follow from the sequence alone, never from those beside it.
struct LibrarySeq {
  const AttendProblem* problem = nullptr;
  int64_t b = 0;
  int64_t kv_heads = 0;  // of a call, a divisor of all
  KeyBand band;
  double seconds = 0;  // of a call, as own kernels would take
  std::shared_ptr<const Cudnn::Plan> plan;
};

// The sequences of a launch that the library computes: large ones of 16-bit numbers whose lengths
// are multiples of 256, with plain scores, of which a query sees all keys or those of a band.
class LibraryAttention {
 public:
  // Not on a dry stream. `args` must stay.
  LibraryAttention(CudaDevice& device, Stream& stream, const AttendArgs& args);

  bool empty() const { return seqs_.empty(); }
  // What own kernels must compute before Run: all problems but those of which the library computes
  // everything. Its sequences are empty here, so that rows beyond them have their values.
  const std::vector<AttendProblem>& rest() const { return rest_; }
  // What own kernels must compute again after Run, where a result is not finite: sequences in bands
  // alone, the others are empty. Engines multiply all values of a tile, those that a query does not
  // see by weights of zero, and NaN is what that makes of a value which is not finite.
  const std::vector<AttendProblem>& banded() const { return banded_; }
  // Asks the stream for all of them. *has_failed: own kernels must compute everything instead.
  DeviceStatus Run(bool* has_failed);

  // From shapes alone.
  static bool MayTakeBands(CudaDevice& device, const AttendArgs& args);
  // On a dry stream: the most that Run takes. Own kernels must be planned for everything, since the
  // library may fail.
  static DeviceStatus Plan(CudaDevice& device, Stream& stream, const AttendArgs& args);

 private:
  bool Take(const AttendProblem& problem, int64_t b);
  DeviceStatus Call(const LibrarySeq& seq, void* workspace, bool* has_failed);

  CudaDevice& device_;
  Stream& stream_;
  const AttendParams params_;
  std::vector<LibrarySeq> seqs_;
  std::vector<AttendProblem> rest_, banded_;
};

}  // namespace attnd::cuda
