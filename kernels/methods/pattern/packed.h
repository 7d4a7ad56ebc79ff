// Packed sequences (cu_seqlens_q, cu_seqlens_k) of the pattern family.
#pragma once

#include <functional>
#include <span>

#include "kernels/method/method.h"

namespace attnd {

// Runs `formula` on `in`, or on its packed sequences as problems of their own: a view of the packed
// tensors each; only results are copied. The declared shapes of `inputs` say which axes are cut. A
// method needs no code for packed sequences: positions, offsets and draws count from the begin of a
// sequence, and sequences of equal lengths share their cached pattern.
using PatternFormula = std::function<Outputs(const Inputs& in)>;
Outputs ForSequences(Ops& ops, const Inputs& in, std::span<const TensorInfo> inputs,
                     const PatternFormula& formula);

}  // namespace attnd
