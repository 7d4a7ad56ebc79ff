// What routing answers about centroids: the loss that draws rows to them, and their update.
#pragma once

#include <map>
#include <string>

#include "kernels/methods/routing/clusters.h"

namespace attnd {

// The rows that both read: queries and, with separate keys, keys.
struct CentroidInputs {
  const RoutedParts& parts;
  const RoutedRows &queries, &keys;  // keys empty: shared
  const Tensor& means;               // [H,C,D] of each request
  const Tensor& of_parts;            // [1,H,C,D] of each part
};

// aux [1] float32 of each request. Its gradient reaches q and k, and is zero for other inputs.
Tensor AuxLoss(Ops& ops, const Inputs& in, const RoutingOptions& o, const CentroidInputs& x);

// centroids, ema_count and ema_means, constants.
std::map<std::string, Tensor> UpdatedCentroids(Ops& ops, const Inputs& in, const RoutingOptions& o,
                                               const CentroidInputs& x);

}  // namespace attnd
