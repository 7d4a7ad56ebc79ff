// The lists of a primitive that keeps a line in registers where it can: all its lines, and those
// that are cut into chunks.
#pragma once

#include "kernels/cuda/along/lines.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

// Of a launch in which a warp goes through the chunks of a line, one a lane and step: `most` of
// them, `bytes` of all lines.
inline double MergeSeconds(const Cuda& cuda, int64_t most, double bytes) {
  constexpr double kStepSeconds = 1e-6;  // a load from memory, and exponentials of float64
  const double steps = static_cast<double>(most) / simt::kWarp;
  return std::max(cuda.Seconds(0, bytes), Cuda::kLaunchSeconds + kStepSeconds * steps);
}

// Lines of one kind.
struct CutList {
  ProblemList<Lines> all, cut;  // every chunk; those of cut lines once more
  double elements = 0, bytes = 0, cut_elements = 0, cut_bytes = 0;

  // Predicted, of a launch over each list.
  double AllSeconds(const Cuda& cuda, double flops_an_element) const {
    return cuda.Seconds(elements * flops_an_element, bytes);
  }
  double CutSeconds(const Cuda& cuda, double flops_an_element) const {
    return cuda.Seconds(cut_elements * flops_an_element, cut_bytes);
  }
};

class CutLines {
 public:
  // `bytes_read`, `bytes_written`: of an element.
  void Add(const std::vector<Lines>& problem, int64_t bytes_read, int64_t bytes_written) {
    parts_ = RoundUp(parts_, kShareParts);
    for (Lines lines : problem) {
      CutList& list = of(lines.kind());
      lines.first_part = parts_;
      list.all.Add(lines, lines.chunk_blocks());
      const auto elements = static_cast<double>(lines.count) * static_cast<double>(lines.n);
      list.elements += elements;
      list.bytes += elements * static_cast<double>(bytes_read);
      if (lines.chunks == 1) {
        list.bytes += elements * static_cast<double>(bytes_written);
        continue;
      }
      parts_ += lines.parts();
      most_chunks_ = std::max(most_chunks_, lines.chunks);
      merged.Add(lines, lines.warp_blocks());
      list.cut.Add(lines, lines.chunk_blocks());
      list.cut_elements += elements;
      list.cut_bytes += elements * static_cast<double>(bytes_read + bytes_written);
    }
  }
  // Scratch for a P of each chunk of those lines that are cut.
  template <class P>
  std::shared_ptr<Buffer> TakeParts(Stream& stream) const {
    static_assert(kShareParts * sizeof(P) % 64 == 0);
    return TakeShared(stream, RoundUp(parts_, kShareParts) * static_cast<int64_t>(sizeof(P)));
  }
  double MergedSeconds(const Cuda& cuda, size_t part_bytes) const {
    return MergeSeconds(cuda, most_chunks_,
                        static_cast<double>(parts_) * static_cast<double>(part_bytes));
  }

  CutList& of(LineKind kind) { return lists_[static_cast<size_t>(kind)]; }
  ProblemList<Lines> merged;  // a warp a line of several chunks

 private:
  static constexpr int64_t kShareParts = 8;  // each problem has a multiple of them
  std::array<CutList, kLineKinds> lists_;
  int64_t parts_ = 0, most_chunks_ = 0;  // of all lines, of one
};

// Calls run(kind) with each kind as a constant until one fails: of dense lines, of all.
template <class F>
DeviceStatus ForEachRowKind(const F& run) {
  DeviceStatus status = run(std::integral_constant<LineKind, LineKind::kShortRows>());
  return status.ok() ? run(std::integral_constant<LineKind, LineKind::kRows>()) : status;
}
template <class F>
DeviceStatus ForEachLineKind(const F& run) {
  DeviceStatus status = ForEachRowKind(run);
  return status.ok() ? run(std::integral_constant<LineKind, LineKind::kColumns>()) : status;
}

}  // namespace attnd::cuda
