// The problem of one request as the checks and formulas of methods see it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/core/view.h"

namespace attnd {

// Element i of an int32 tensor of rank 1 with data.
int64_t IntAt(const View& view, int64_t i);

// Views of integer tensors of rank 1 (lengths, offsets, cu_seqlens) have data; all others may have
// none, since a plan reads shapes only.
struct ProblemShape {
  int64_t B = 0, H = 0, Hkv = 0, Nq = 0, Nk = 0, D = 0, Dv = 0;
  const std::map<std::string, View>* tensors = nullptr;

  const View* Find(absl::string_view name) const;
  // Whether the sizes of q, k or v are known: it was sent, with four dimensions.
  bool HasSizesOf(absl::string_view name) const;
  // Element b of an int32 [B] tensor, or `absent`.
  int64_t Int(absl::string_view name, int64_t b, int64_t absent) const;
};

}  // namespace attnd
