// Index tensors and masks of the pattern family: read when a request runs, and refused with the
// same messages as by a plan.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/method/method.h"

namespace attnd {

// One tensor of every problem, int32 or uint8, in host memory. Its values are unknown on a dry
// stream.
class HostInts {
 public:
  // `rank` includes the batch dimension; a tensor of a lower rank is the same for every sequence.
  HostInts(Ops& ops, const Inputs& in, const std::string& name, int rank);

  bool is_sent() const { return !shapes_.empty(); }
  // Sent, and its values are not known: the stream is dry.
  bool is_unknown() const { return is_unknown_; }
  // Whether each sequence of problem p has values of its own.
  bool differs(size_t p) const;
  // The values of sequence b of problem p, row-major; empty on a dry stream.
  std::span<const int32_t> OfSeq(size_t p, int64_t b) const;
  // Its sizes after the batch dimension. REQUIRES: is_sent().
  Shape SeqShape(size_t p) const;
  // Where the first dimension counts heads (1: all alike): their number, and the values of one.
  int64_t Heads(size_t p) const { return SeqShape(p)[0]; }
  std::span<const int32_t> Head(size_t p, int64_t b, int64_t h) const;
  // Places of sequence b whose value is not 0.
  std::vector<int32_t> Nonzero(size_t p, int64_t b) const;

  // Fails `ops` with INVALID_ARGUMENT, "method: name[0,2,1] must be in TEXT, got 7", unless every
  // element that `matters` (empty: all) lies in the range of its problem.
  struct Range {
    int64_t low = 0, high = 0;
    std::string text;
  };
  using Matters = std::function<bool(size_t p, int64_t element)>;  // row-major, batch included
  void CheckRange(Ops& ops, absl::string_view method, const std::function<Range(size_t p)>& range,
                  const Matters& matters = {}) const;
  // Likewise unless every row of [H or 1, n] holds 0..n-1 once; messages call n "nb".
  void CheckPermutations(Ops& ops, absl::string_view method) const;
  // Likewise unless [H or 1, n] are offsets from 0 to the size of `indices`, head after head.
  void CheckOffsets(Ops& ops, absl::string_view method, const HostInts& indices) const;

 private:
  // "method: name[0,2,1] rule, got 7".
  absl::Status Refusal(absl::string_view method, size_t p, int64_t element,
                       absl::string_view rule) const;
  std::string PlaceOf(size_t p, int64_t element) const;

  const std::string name_;
  const int rank_;
  bool is_unknown_ = false;
  std::vector<Shape> shapes_;
  std::vector<std::vector<int32_t>> values_;
};

// The integer tensors among `declared`, sent or not, by name.
class Integers {
 public:
  Integers(Ops& ops, const Inputs& in, std::span<const TensorInfo> declared);

  // REQUIRES: one of `declared`, int32 or uint8.
  const HostInts& operator[](absl::string_view name) const;
  // The number of values of one sequence in all of them.
  int64_t Elements(size_t p) const;
  // Whether each sequence of problem p has its own values in any of them.
  bool differ(size_t p) const;

 private:
  std::map<std::string, HostInts, std::less<>> by_name_;
};

}  // namespace attnd
