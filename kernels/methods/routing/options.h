// Options, tensors, sizes and rules of routing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/core/random_table.h"
#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/options.h"
#include "kernels/method/problem.h"

namespace attnd {

enum class RouteNorm : uint8_t { kLayerNorm, kL2, kNone };
enum class AttendNorm : uint8_t { kLayerNorm, kL2Key, kNone };

struct RoutingOptions {
  std::optional<int64_t> n_clusters;  // unset: max(1, round(sqrt(Nk)))
  std::optional<int64_t> window;      // unset: ceil(Nk / C)
  std::optional<int64_t> kv_window;   // unset: window
  bool shared_qk = true;
  RouteNorm route_norm = RouteNorm::kLayerNorm;
  AttendNorm attend_norm = AttendNorm::kLayerNorm;
  bool self_mask = false;
  double mean_eps = 0;
  bool causal = false;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  double commitment = 1e-4;
  bool aux_loss = false;
  bool return_centroids = false;
  double ema_decay = 0.999;
  uint64_t seed = 0;
};

std::vector<OptionSpec<RoutingOptions>> RoutingLines();
std::vector<TensorInfo> RoutingInputs();
std::vector<TensorInfo> RoutingOutputs();

// Of one request, before it is cut to lengths.
struct RoutingSizes {
  RoutingSizes(const ProblemShape& p, const RoutingOptions& o);

  int64_t clusters = 1;               // C
  int64_t window = 1, kv_window = 1;  // w, w_k; a sequence may have fewer rows
  int64_t slots = 0;                  // M, of memory
};

// The draw of mem_k and mem_v, and of means before they are normalised.
DrawParams RoutingDraw(const RoutingOptions& o, const char* name);

// Whether q_lengths of some sequence exceed its kv_lengths with shared_qk. Requests of a batch are
// alike.
bool HasUnseenRows(const ProblemShape& p, const RoutingOptions& o);

void CheckRouting(const ProblemShape& p, const RoutingOptions& o, Reasons* reasons);

}  // namespace attnd
