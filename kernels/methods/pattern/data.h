// Index tensors and masks of the pattern family: read when a request runs, refused in the words of
// a plan.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/method/method.h"

namespace attnd {

// One tensor of every problem, int32 or uint8, which lies in host memory. On a dry stream its
// values are unknown.
class HostInts {
 public:
  // `rank`: that of the tensor with its batch dimension; one of a lower rank is the same for every
  // batch row.
  HostInts(Ops& ops, const Inputs& in, const std::string& name, int rank);

  bool is_sent() const { return !shapes_.empty(); }
  // Whether batch rows have their own.
  bool differs() const;
  // Batch row b of problem p, row-major; empty on a dry stream.
  std::span<const int32_t> Row(size_t p, int64_t b) const;
  // Its sizes behind the batch dimension. REQUIRES: is_sent().
  Shape SeqShape(size_t p) const;
  // Of a row whose first dimension counts heads (1: all alike): their number, and one of them.
  int64_t Heads(size_t p) const { return SeqShape(p)[0]; }
  std::span<const int32_t> Head(size_t p, int64_t b, int64_t h) const;
  // Places of a row that are not 0.
  std::vector<int32_t> Nonzero(size_t p, int64_t b) const;

  // Fails with INVALID_ARGUMENT, "method: name[0,2,1] must be in TEXT, got 7", unless every element
  // that matters lies in the range of its problem.
  struct Range {
    int64_t low = 0, high = 0;
    std::string text;
  };
  using Matters = std::function<bool(size_t p, int64_t element)>;  // row-major, batch included
  void CheckRange(Ops& ops, absl::string_view method, const std::function<Range(size_t p)>& range,
                  const Matters& matters = {}) const;
  // Likewise: every row [H or 1, n] of `this` holds 0..n-1 once, "nb" being its n in the message.
  void CheckPermutations(Ops& ops, absl::string_view method) const;
  // Likewise: [H or 1, n] offsets from 0 to the size of `indices`, head after head.
  void CheckOffsets(Ops& ops, absl::string_view method, const HostInts& indices) const;

 private:
  // "method: name[0,2,1] rule, got 7".
  absl::Status Refusal(absl::string_view method, size_t p, int64_t element,
                       absl::string_view rule) const;
  std::string PlaceOf(size_t p, int64_t element) const;

  const std::string name_;
  const int rank_;
  std::vector<Shape> shapes_;
  std::vector<std::vector<int32_t>> values_;
};

}  // namespace attnd
