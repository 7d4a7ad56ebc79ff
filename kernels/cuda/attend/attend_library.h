// Which sequences the library of a device attends to, or computes the gradients of, and how it is
// asked to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/cudnn.h"
#include "kernels/device/attend.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class CudaDevice;

// A problem of either direction.
struct LibraryProblem {
  const AttendProblem* forward = nullptr;
  const AttendGradProblem* gradient = nullptr;  // null: the forward is what is computed

  static LibraryProblem Of(const AttendProblem& p) { return {.forward = &p}; }
  static LibraryProblem Of(const AttendGradProblem& p) {
    return {.forward = &p.forward, .gradient = &p};
  }
};

// The same of all problems of a launch, which must stay.
template <class Args>
std::vector<LibraryProblem> LibraryProblemsOf(const Args& args) {
  std::vector<LibraryProblem> problems;
  for (const auto& p : args.problems) problems.push_back(LibraryProblem::Of(p));
  return problems;
}

// A sequence as the library takes it: as many kv heads a call, with their query heads, as a slice
// of time and scratch memory allow. The calls follow from the sequence alone, never from those
// beside it.
struct LibrarySeq {
  LibraryProblem problem;
  int64_t b = 0;
  int64_t kv_heads = 0;  // of a call, a divisor of all
  KeyBand band;
  double seconds = 0;  // of a call, as own kernels would take
  std::shared_ptr<const Cudnn::Plan> plan;
};

// The sequences of a launch that the library computes: large ones of 16-bit numbers whose lengths
// are multiples of 256, with plain scores, of which a query sees all keys or those of a band.
// Gradients: of all three of q, k and v, of as many heads of keys as of queries.
class LibraryAttention {
 public:
  // Not on a dry stream.
  LibraryAttention(CudaDevice& device, Stream& stream, const AttendParams& params,
                   std::span<const LibraryProblem> problems);

  bool empty() const { return seqs_.empty(); }
  // What own kernels must compute before Run: all problems but those of which the library computes
  // everything. Its sequences are empty here, so that rows beyond them have their values.
  template <class P>
  std::vector<P> Rest(const std::vector<P>& problems) const {
    return With(rest_, problems);
  }
  // What own kernels must compute again after Run, where a result is not finite or lse is too large
  // (kMostLibraryLse): sequences in bands, those that want lse_low and all gradients, the others
  // are empty. Engines multiply all values of a tile, those that a query does not see by weights of
  // zero, and NaN is what that makes of a value which is not finite. Gradients may also leave the
  // range of float16 on their way.
  template <class P>
  std::vector<P> Doubtful(const std::vector<P>& problems) const {
    return With(doubtful_, problems);
  }
  // Asks the stream for all of them. *has_failed: own kernels must compute everything instead.
  DeviceStatus Run(bool* has_failed);

  // Whether it may take a sequence whose results may be doubtful; from shapes alone.
  static bool MayDoubt(CudaDevice& device, const AttendParams& params,
                       std::span<const LibraryProblem> problems);
  // On a dry stream: the most that Run takes. Own kernels must be planned for everything, since the
  // library may fail.
  static DeviceStatus Plan(CudaDevice& device, Stream& stream, const AttendParams& params,
                           std::span<const LibraryProblem> problems);

 private:
  // A problem of the launch with other sequences.
  struct Part {
    size_t problem = 0;
    std::vector<AttendSeq> seqs;
  };
  static void SetSeqs(const std::vector<AttendSeq>& seqs, AttendProblem* p) { p->seqs = seqs; }
  static void SetSeqs(const std::vector<AttendSeq>& seqs, AttendGradProblem* p) {
    p->forward.seqs = seqs;
  }
  template <class P>
  static std::vector<P> With(const std::vector<Part>& parts, const std::vector<P>& problems) {
    std::vector<P> with;
    for (const Part& part : parts) {
      with.push_back(problems[part.problem]);
      SetSeqs(part.seqs, &with.back());
    }
    return with;
  }

  bool Take(const LibraryProblem& problem, int64_t b);
  DeviceStatus Call(const LibrarySeq& seq, void* workspace, bool* has_failed);

  CudaDevice& device_;
  Stream& stream_;
  const AttendParams params_;
  std::vector<LibrarySeq> seqs_;
  std::vector<Part> rest_, doubtful_;
};

}  // namespace attnd::cuda
