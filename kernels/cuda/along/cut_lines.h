// The lists of a primitive that keeps a line in registers where it can: all its lines, and those
// that are cut into chunks.
#pragma once

#include "kernels/cuda/along/lines.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

class CutLines {
 public:
  // `bytes_read`, `bytes_written`: of an element.
  void Add(const std::vector<Lines>& problem, int64_t bytes_read, int64_t bytes_written) {
    parts_ = RoundUp(parts_, kShareParts);
    for (Lines lines : problem) {
      lines.first_part = parts_;
      all.Add(lines, lines.chunk_blocks());
      const auto elements = static_cast<double>(lines.count) * static_cast<double>(lines.n);
      elements_ += elements;
      bytes_ += elements * static_cast<double>(bytes_read);
      if (lines.chunks == 1) {
        bytes_ += elements * static_cast<double>(bytes_written);
        continue;
      }
      parts_ += lines.parts();
      merged.Add(lines, lines.warp_blocks());
      cut.Add(lines, lines.chunk_blocks());
      cut_elements_ += elements;
      cut_bytes_ += elements * static_cast<double>(bytes_read + bytes_written);
    }
  }
  // Scratch for a P of each chunk of those lines that are cut.
  template <class P>
  std::shared_ptr<Buffer> TakeParts(Stream& stream) const {
    static_assert(kShareParts * sizeof(P) % 64 == 0);
    return TakeShared(stream, RoundUp(parts_, kShareParts) * static_cast<int64_t>(sizeof(P)));
  }

  // Predicted, of a launch over each list.
  double AllSeconds(const Cuda& cuda, double flops_an_element) const {
    return cuda.Seconds(elements_ * flops_an_element, bytes_);
  }
  double MergedSeconds(const Cuda& cuda, size_t part_bytes) const {
    return cuda.Seconds(0, static_cast<double>(parts_) * static_cast<double>(part_bytes));
  }
  double CutSeconds(const Cuda& cuda, double flops_an_element) const {
    return cuda.Seconds(cut_elements_ * flops_an_element, cut_bytes_);
  }

  // Visits every chunk; a warp a line of several chunks; their chunks once more.
  ProblemList<Lines> all, merged, cut;

 private:
  static constexpr int64_t kShareParts = 8;  // each problem has a multiple of them
  int64_t parts_ = 0;
  double elements_ = 0, bytes_ = 0, cut_elements_ = 0, cut_bytes_ = 0;
};

}  // namespace attnd::cuda
