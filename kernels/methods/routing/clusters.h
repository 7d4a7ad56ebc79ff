// The clusters of routing: rows as they are compared with centroids, the members of each cluster,
// and attention among them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/methods/routing/options.h"
#include "kernels/ops/ops.h"

namespace attnd {

// A request list as its parts: sequences of equal lengths, cut to these.
class RoutedParts {
 public:
  RoutedParts(Ops& ops, const Inputs& in, const RoutingOptions& o);

  const SeqSplit& seqs() const { return seqs_; }
  const RoutingSizes& sizes(size_t part) const { return sizes_[seqs_.parts()[part].problem]; }
  size_t size() const { return seqs_.parts().size(); }
  // Rows of queries and of keys of a part. Shared rows are those of the queries.
  int64_t nq(size_t part) const;
  int64_t nk(size_t part) const;
  Tensor Queries(const Tensor& x) const;
  Tensor Keys(const Tensor& x) const;
  // Of a request whose shared rows may be more than kv_lengths: later ones are queries alone.
  bool has_unseen() const { return has_unseen_; }
  // The rows of a part that serve as keys.
  int64_t seen(size_t part) const;
  // v of Keys; zeros for rows that are queries alone.
  Tensor Values(const Tensor& v) const;

 private:
  Ops& ops_;
  const SeqSplit seqs_;
  const bool is_shared_;
  const bool has_unseen_;
  std::vector<RoutingSizes> sizes_;
};

// means [H,C,D] of each request as sent, or drawn and normalised. A constant.
Tensor MeansOf(Ops& ops, const Inputs& in, const RoutingOptions& o);

// Queries or keys of every part.
struct RoutedRows {
  Tensor rows;     // [b,H or Hkv,n,D] as sent
  Tensor normed;   // the same by route_norm
  Tensor members;  // [b,H,C,w] int32: the best rows of every centroid, ascending
  Tensor nearest;  // [b,H,n] int32: the best centroid of every row; where centroids are asked for
};
enum class RowRole : uint8_t { kQueries, kKeys };
// `means` [1,H,C,D] of every part. Scores [b,H,C,n] live in here alone.
RoutedRows RouteRows(Ops& ops, const RoutedParts& parts, RowRole role, const Tensor& rows,
                     const Tensor& means, const RoutingOptions& o);

// out [b,H,nq,Dv] of every part, float32: the mean over clusters of attention among their members.
// `keys` empty: those of the queries.
struct ClusterInputs {
  const RoutedParts& parts;
  RoutedRows queries, keys;
  Tensor v;
};
Tensor AttendInClusters(Ops& ops, const Inputs& in, const RoutingOptions& o,
                        const ClusterInputs& inputs);

}  // namespace attnd
