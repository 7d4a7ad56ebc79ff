// A strided array of one problem: shape, strides, and memory that it does not own.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/core/dtype.h"

namespace attnd {

constexpr int kMaxRank = 6;

// Up to kMaxRank dimensions. A dimension may be 0.
struct Shape {
  int rank = 0;
  std::array<int64_t, kMaxRank> dims = {1, 1, 1, 1, 1, 1};

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) : rank(static_cast<int>(list.size())) {
    assert(rank <= kMaxRank);
    int i = 0;
    for (int64_t d : list) dims[i++] = d;
  }
  int64_t operator[](int i) const { return dims[i]; }
  // Number of elements. REQUIRES: it fits in 63 bits (checked where a shape enters the process).
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  bool operator==(const Shape& other) const {
    if (rank != other.rank) return false;
    for (int i = 0; i < rank; ++i) {
      if (dims[i] != other.dims[i]) return false;
    }
    return true;
  }
};

std::string ToString(const Shape& shape);  // "[1,8,512,64]"

// Memory order of a [B,H,N,D] tensor. The shape is always given as [B,H,N,D].
enum class Layout : uint8_t { kBHND, kBNHD };

// shape[i] elements at distance stride[i] (in elements). Does not own `data`; `data` is null in a
// dry run. A stride of 0 repeats elements. Tensors of a request have a last stride of 1; a
// primitive says what strides it takes. Alignment is that of the element only.
struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Layout layout = Layout::kBHND;
  Shape shape;
  std::array<int64_t, kMaxRank> stride = {};

  // False for View{}: an argument that is absent. (A null `data` does not say so in a dry run.)
  bool given() const { return shape.rank != 0; }
  int64_t bytes() const { return shape.size() * SizeOf(dtype); }

  template <class T>
  T* As() const {
    return static_cast<T*>(data);
  }
};

// A dense view over `data`. With kBNHD, `shape` is [B,H,N,D] and memory runs b, n, h, d (a rank 3
// [B,H,N] tensor is always dense in its own order).
View DenseView(void* data, DType dtype, const Shape& shape, Layout layout = Layout::kBHND);

}  // namespace attnd
