// Primitives in plain double loops, written from their contracts: tests compare with them, and
// PlainDevice runs them. They share only structs with the library.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device/device.h"

namespace attnd::testing {

// A dense array of doubles of any rank.
struct PlainArray {
  Shape shape;
  std::vector<double> values;

  PlainArray() = default;
  explicit PlainArray(const Shape& s, double value = 0)
      : shape(s), values(static_cast<size_t>(s.size()), value) {}
  // The element at `index`, of which a dimension of 1 repeats.
  double& At(const std::vector<int64_t>& index);
  double At(const std::vector<int64_t>& index) const {
    return const_cast<PlainArray*>(this)->At(index);
  }
};

// Calls visit(index) for every element of a shape, the last axis fastest.
void ForEachIndex(const Shape& shape,
                  const std::function<void(const std::vector<int64_t>&)>& visit);

// Any dtype and strides. A view that is not given: an array of rank 0.
PlainArray ReadView(const View& view);
// Rounds to the view's dtype.
void WriteView(const PlainArray& array, const View& view);
// lse as attention keeps it: rounded to float32, and what that left out (AttendProblem::lse_low).
void WriteLse(const PlainArray& lse, const View& rounded, const View& low);
// Their sum. low not given: 0.
PlainArray ReadLse(const View& rounded, const View& low);

// Runs a primitive: a specialisation for each alternative of Launch, in the file of its name.
template <class Args>
void PlainRun(const Args& args);
void PlainRun(const Launch& launch);

}  // namespace attnd::testing
