#include "kernels/methods/routing/options.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/integer.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"

namespace attnd {
namespace {

// Each cluster may take all rows of a short sequence, so that these bound what a row costs: the
// clusters, and the members of all clusters of a head, kFewMembers or so many for each row.
constexpr int64_t kMostClusters = 4096;
constexpr int64_t kFewMembers = int64_t{1} << 18, kMembersOfRow = 64;
constexpr int64_t kMostMembers = int64_t{1} << 30;
// Positions are compared as float32 where places do not say which keys a query sees.
constexpr int64_t kMostPositions = int64_t{1} << 24;

constexpr char kMeans[] = "[H,C,D]", kMemK[] = "[H,C,M,D]", kMemV[] = "[H,C,M,Dv]";

const View* OfRank(const ProblemShape& p, const char* name, int rank) {
  const View* view = p.Find(name);
  return view != nullptr && view->shape.rank == rank ? view : nullptr;
}

// Whether lengths were sent as the shared checks want them.
bool AreLengths(const View* lengths, int64_t B) {
  return lengths != nullptr && lengths->dtype == DType::kI32 && lengths->shape.rank == 1 &&
         lengths->shape[0] == B && lengths->data != nullptr;
}

void CheckPositions(const char* letters, int64_t n, const char* with, Reasons* reasons) {
  if (n <= kMostPositions) return;
  reasons->Invalid(letters, " must be at most ", kMostPositions, " with ", with, ", got ", n);
}

void CheckShared(const ProblemShape& p, const RoutingOptions& o, Reasons* reasons) {
  const View* k = p.Find("k");
  if (k != nullptr) {
    reasons->Invalid("k must be absent with shared_qk, got ", ToString(k->shape));
  } else if (p.HasSizesOf("q") && p.HasSizesOf("v") && p.Nq != p.Nk) {
    reasons->Invalid("Nk must be Nq = ", p.Nq, " with shared_qk, got ", p.Nk);
  }
  if (o.kv_window.has_value()) {
    reasons->Invalid("kv_window must be absent with shared_qk, got ", *o.kv_window);
  }
  if (HasUnseenRows(p, o)) CheckPositions("Nk", p.Nk, "q_lengths above kv_lengths", reasons);
}

void CheckSeparate(const ProblemShape& p, const RoutingOptions& o, Reasons* reasons) {
  if (p.Find("k") == nullptr) {
    reasons->Invalid("k is required with shared_qk = false, got none");
  }
  if (o.self_mask) reasons->Invalid("self_mask needs shared_qk, got shared_qk = false");
  if (!o.causal) return;
  CheckPositions("Nq", p.Nq, "causal and shared_qk = false", reasons);
  CheckPositions("Nk", p.Nk, "causal and shared_qk = false", reasons);
}

void CheckClusters(const ProblemShape& p, const RoutingOptions& o, Reasons* reasons) {
  const View* means = OfRank(p, "means", 3);
  if (means != nullptr && (means->shape[1] < 1 || means->shape[1] > kMostClusters)) {
    return reasons->Invalid("means shape must have C in 1..", kMostClusters, ", got ",
                            ToString(means->shape));
  }
  const RoutingSizes sizes(p, o);
  CheckShapes(p, RoutingInputs(), {{"C", sizes.clusters}, {"M", sizes.slots}}, reasons);
  CheckDrawn(p, "means", RoutingDraw(o, "means"), {p.H, sizes.clusters, p.D}, reasons);
  if (p.Find("mem_k") != nullptr || p.Find("mem_v") != nullptr) {
    const Shape keys = {p.H, sizes.clusters, sizes.slots, p.D};
    const Shape values = {p.H, sizes.clusters, sizes.slots, p.Dv};
    CheckDrawn(p, "mem_k", RoutingDraw(o, "mem_k"), keys, reasons);
    CheckDrawn(p, "mem_v", RoutingDraw(o, "mem_v"), values, reasons);
  }
  const auto members = [&](const char* name, int64_t window, const char* letters, int64_t rows) {
    const int64_t taken = std::min(window, rows);
    const int64_t most = std::clamp(kMembersOfRow * rows, kFewMembers, kMostMembers);
    if (sizes.clusters * taken <= most) return;
    reasons->Invalid(name, " must be at most ", most / sizes.clusters, " with ", sizes.clusters,
                     " clusters and ", letters, " = ", rows, ", got ", taken);
  };
  members("window", sizes.window, "Nq", p.Nq);
  if (!o.shared_qk) members("kv_window", sizes.kv_window, "Nk", p.Nk);
}

// What goes with outputs that an option asks for.
void CheckAsked(const ProblemShape& p, const RoutingOptions& o, Reasons* reasons) {
  const View* aux = p.Find("grad_aux");
  if (aux != nullptr && !o.aux_loss) {
    reasons->Invalid("grad_aux needs aux_loss, got aux_loss = false");
  }
  for (const char* name : {"ema_count", "ema_means"}) {
    if (p.Find(name) == nullptr || o.return_centroids) continue;
    reasons->Invalid(name, " needs return_centroids, got return_centroids = false");
  }
}

}  // namespace

std::vector<OptionSpec<RoutingOptions>> RoutingLines() {
  using O = RoutingOptions;
  return {
      ReadIf(
          "means is absent",
          [](const O&, const ProblemShape& p) { return p.Find("means") == nullptr; },
          IntOption("n_clusters", &O::n_clusters, {.min = 1, .max = kMostClusters},
                    "max(1, round(sqrt(Nk)))", "clusters of a head; default of the padded Nk")),
      IntOption("window", &O::window, {.min = 1}, "ceil(Nk / n_clusters)",
                "queries of a cluster; of fewer rows all; default of the padded Nk"),
      IntOption("kv_window", &O::kv_window, {.min = 1}, "window", "keys of a cluster"),
      BoolOption("shared_qk", &O::shared_qk, "q serves as the keys, too, and k must be absent"),
      EnumOption("route_norm", &O::route_norm, {"layernorm", "l2", "none"},
                 "of the rows that are compared with means"),
      EnumOption("attend_norm", &O::attend_norm, {"layernorm", "l2_key", "none"},
                 "of the rows in logits; l2_key: of keys alone"),
      BoolOption("self_mask", &O::self_mask,
                 "shared_qk: the logit of a token to itself becomes -5e4"),
      FloatOption("mean_eps", &O::mean_eps, {.min = 0, .max = 1e30},
                  "added to the number of clusters that a query averages"),
      BoolOption(
          "causal", &O::causal,
          "query i sees keys j <= i + Nk - Nq; later tokens still change who is in a cluster"),
      ScaleOption(&O::scale, "multiplies q k^T"),
      ReadIf(
          "aux_loss is true", [](const O& o) { return o.aux_loss; },
          FloatOption("commitment", &O::commitment, {.min = 0, .max = 1e30}, "weight of aux")),
      BoolOption("aux_loss", &O::aux_loss, "also answer aux"),
      BoolOption("return_centroids", &O::return_centroids, "also answer the updated centroids"),
      ReadIf(
          "return_centroids is true", [](const O& o) { return o.return_centroids; },
          FloatOption("ema_decay", &O::ema_decay, {.min = 0, .max = 1},
                      "of the update of centroids; < 1")),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> RoutingInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  for (TensorInfo& input : inputs) {
    if (input.name == "k") {
      input.required = false;
      input.help = "keys; Hkv divides H; absent with shared_qk";
    }
    if (input.name == "q_lengths") {
      input.help = "0..Nq: rows beyond give out = 0; shared_qk: no keys either, absent: kv_lengths";
    }
  }
  inputs.push_back({"means", kMeans, "float", "centroids, constants; drawn when absent"});
  inputs.push_back(
      Differentiable("mem_k", kMemK, "keys that all queries of a cluster see, used as sent"));
  inputs.push_back(Differentiable("mem_v", kMemV, "their values; of the two one may be drawn"));
  inputs.push_back(Differentiable("bias", "broadcastable to [B,H,Nq,Nk]",
                                  "added to the logits, not to those of mem_k"));
  inputs.push_back({"ema_count", "[H,C]", "float32", "for return_centroids; zeros when absent"});
  inputs.push_back({"ema_means", kMeans, "float32", "for return_centroids; means when absent"});
  return inputs;
}

std::vector<TensorInfo> RoutingOutputs() {
  const auto constant = [](const char* name, const char* shape, const char* help) {
    return TensorInfo{
        .name = name, .shape = shape, .dtype = "float32", .help = help, .is_constant = true};
  };
  return {{"out", "[B,H,Nq,Dv]", "float", "means over the clusters that have the query"},
          {"aux", "[1]", "float32",
           "with aux_loss: commitment times the mean of (norm(x) - mu_c)^2, c of the largest "
           "norm(x) . mu_c"},
          constant("centroids", kMeans, "with return_centroids; no gradient"),
          constant("ema_count", "[H,C]", "with return_centroids, for the next request"),
          constant("ema_means", kMeans, "with return_centroids, for the next request")};
}

RoutingSizes::RoutingSizes(const ProblemShape& p, const RoutingOptions& o) {
  // A refused option is 0.
  const auto rows = static_cast<double>(std::max<int64_t>(p.Nk, 0));
  const auto usual = std::max<int64_t>(std::llround(std::sqrt(rows)), 1);
  const View* means = OfRank(p, "means", 3);
  clusters = means != nullptr ? means->shape[1] : o.n_clusters.value_or(usual);
  clusters = std::max<int64_t>(clusters, 1);
  window = std::max<int64_t>(o.window.value_or(CeilDiv(std::max<int64_t>(p.Nk, 0), clusters)), 1);
  kv_window = std::max<int64_t>(o.kv_window.value_or(window), 1);
  for (const char* name : {"mem_v", "mem_k"}) {
    if (const View* view = OfRank(p, name, 4)) slots = view->shape[2];
  }
}

DrawParams RoutingDraw(const RoutingOptions& o, const char* name) {
  return {.seed = o.seed, .name = name, .distribution = Distribution::kNormal};
}

bool HasUnseenRows(const ProblemShape& p, const RoutingOptions& o) {
  const View *of_q = p.Find("q_lengths"), *of_k = p.Find("kv_lengths");
  if (!o.shared_qk || !AreLengths(of_q, p.B) || !AreLengths(of_k, p.B)) return false;
  for (int64_t b = 0; b < p.B; ++b) {
    if (IntAt(*of_q, b) > IntAt(*of_k, b)) return true;
  }
  return false;
}

void CheckRouting(const ProblemShape& p, const RoutingOptions& o, Reasons* reasons) {
  o.shared_qk ? CheckShared(p, o, reasons) : CheckSeparate(p, o, reasons);
  CheckClusters(p, o, reasons);
  CheckAsked(p, o, reasons);
  if (o.ema_decay == 1) reasons->Invalid("ema_decay must be < 1, got 1");
}

}  // namespace attnd
