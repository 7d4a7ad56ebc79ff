// Sorts the keys of rows, each with its index: what sort and scatter need.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class CudaDevice;

// How the 32 bits of a key become its rank, an unsigned number that orders like it.
enum class KeyOrder : uint8_t {
  kFloats,  // NaN last, 0 and -0 equal
  kFloatsDescending,
  kInts,
  kIntsDescending,
  kIndices,  // -1 last
};

constexpr int kSortTile = 2048;  // keys that one block sorts

// A sorted key is its rank above its index (32 bits each): all of a row differ, so that every sort
// of them is the stable one.
struct KeyRows {
  View x;  // [.., N], elements of 32 bits
  KeyOrder order = KeyOrder::kFloats;
  int64_t M = 0;  // the first M of every row are wanted
  // Of every row those M indices alone are sorted, [rows][M]; may be `indices`. Null: all keys.
  bool is_chosen = false;
  const int32_t* chosen = nullptr;
  // `indices` in ascending order. REQUIRES: N <= kSortTile.
  bool by_index = false;
  // The result, [rows][M]: sorted keys (REQUIRES: M = N), or their indices.
  bool wants_keys = false;
  uint64_t* keys = nullptr;
  int32_t* indices = nullptr;

  int64_t N() const { return x.shape[x.shape.rank - 1]; }
  int64_t rows() const { return N() == 0 ? 0 : x.shape.size() / N(); }
  int64_t sorted() const { return is_chosen ? M : N(); }  // keys of a row
};

// Some launches for the whole list. Takes scratch memory where rows are longer than kSortTile, for
// `most_scratch` keys or those of one row: longer lists are sorted in turns.
DeviceStatus SortKeys(CudaDevice& device, Stream& stream, const std::vector<KeyRows>& list,
                      int64_t most_scratch = int64_t{1} << 24);

}  // namespace attnd::cuda
