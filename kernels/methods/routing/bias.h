// What is added to the logits of a cluster's members.
#pragma once

#include <string>

#include "kernels/methods/routing/clusters.h"

namespace attnd {

struct Members {
  Tensor queries, keys;  // [b,H,C,w] and [b,H,C,w_k] int32
};
// 1 where a member is no key, [b,H,C,w_k]. REQUIRES: has_unseen().
Tensor IsUnseen(Ops& ops, const RoutedParts& parts, const Tensor& keys);
// [b,H C,w|1,w_k|1] of every part: the bias at the positions of the members, and -inf where the key
// is none, or comes after the query and places do not say so. Empty: nothing is added.
Tensor BiasOfMembers(Ops& ops, const Inputs& in, const RoutingOptions& o, const RoutedParts& parts,
                     const Members& members);

// Which dimensions of a bias repeat: what launches a request takes.
std::string BiasBranch(const ProblemShape& p);

}  // namespace attnd
