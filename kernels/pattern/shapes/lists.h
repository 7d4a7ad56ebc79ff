// Keys by list: tiles where the lists are long, else single pairs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Query i sees keys[i R, (i + 1) R); entries outside [0, Nk) are ignored. A key that is listed
// twice counts once, or (multiset) twice. `ids_q`, `ids_k` as in WithinSegments, or empty.
struct KeyLists {
  std::vector<int32_t> keys;  // empty: DrawnKeys (draws.h), when the pattern is built
  uint64_t seed = 0;          // of DrawnKeys
  int64_t head = 0;           // of DrawnKeys
  int64_t R = 0;
  bool multiset = false;
  bool include_self = false;  // adds j = p where it is a key and not listed
  std::vector<int32_t> ids_q, ids_k;
};
PatternSource ListSource(const PatternSeq& seq, KeyLists lists);

}  // namespace attnd
