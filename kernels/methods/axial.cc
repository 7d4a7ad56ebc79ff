// Axial attention (Ho et al. 2019, sections 3-4) on a row-major grid whose cells are the tokens:
//   single: cell i sees the line through it along `axis`; causal_axis: up to its own coordinate
//   union:  the lines along all axes, one softmax;  sum: the sum of the single ones over `axes`
// Along a line causal and causal_axis are the same. ALiBi counts coordinates along the axis (union:
// |i - j|); with axis_bias, bias [..,d_a,d_a] is read by coordinates. Scores, tensors and shapes as
// in softmax; Nq = Nk = N; sum has no lse.
#include <numeric>

#include "kernels/ops/pattern_plan.h"
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

enum class Mode : uint8_t { kSingle, kUnion, kSum };

struct AxialOptions : PatternOptions {
  std::vector<int64_t> grid, axes;
  std::optional<int64_t> axis;
  Mode mode = Mode::kSingle;
  bool causal_axis = false, axis_bias = false;

  int64_t dimensions() const { return static_cast<int64_t>(grid.size()); }
  bool Has(int64_t a) const { return a >= -dimensions() && a < dimensions(); }
  int64_t FromFront(int64_t a) const { return a < 0 ? a + dimensions() : a; }
  // Tokens between neighbours along an axis.
  int64_t Step(int64_t a) const {
    return std::accumulate(grid.begin() + a + 1, grid.end(), int64_t{1}, std::multiplies<>());
  }
};

constexpr Lacks kLacks{.cross = true, .packed = true};
constexpr int64_t kMostLabels = 65535;  // columns of a table

class Axial : public MethodOf<AxialOptions> {
 public:
  Axial()
      : MethodOf(
            {.id = "axial",
             .summary = "The line of a cell along an axis of a grid",
             .reference = "Ho et al. 2019 (arXiv 1912.12180), sections 3-4",
             .cost = "2 (D + Dv) FLOPs per visible pair, n d_a pairs an axis; memory O(n), with "
                     "axis_bias O(n d_a)",
             .inputs = AxialInputs(),
             .outputs = PatternOutputs(kLacks),
             .support = PatternSupport(kLacks)},
            WithPatternOptions<AxialOptions>(
                {IntsOption<AxialOptions>("grid", &AxialOptions::grid, {.min = 1}, "required",
                                          "extents, row-major; their product is N"),
                 IntOption<AxialOptions>("axis", &AxialOptions::axis, {},
                                         "required when mode is single",
                                         "-m..m-1 of m extents; no effect in other modes"),
                 EnumOption<AxialOptions>("mode", &AxialOptions::mode, {"single", "union", "sum"},
                                          "single",
                                          "one axis, one softmax over all, or the sum of axes"),
                 IntsOption<AxialOptions>("axes", &AxialOptions::axes, {}, "all",
                                          "of sum; no effect in other modes"),
                 BoolOption<AxialOptions>("causal_axis", &AxialOptions::causal_axis, "false",
                                          "sees no larger coordinate along the axis; not of union"),
                 BoolOption<AxialOptions>("axis_bias", &AxialOptions::axis_bias, "false",
                                          "bias is broadcastable to [B,H,d_a,d_a], the same on "
                                          "every line; of single")},
                kLacks)) {}

 protected:
  void CheckProblem(const ProblemShape& problem, const AxialOptions& o,
                    Reasons* reasons) const override {
    CheckPatternTensors(problem, kLacks, reasons);
    CheckGrid(problem, o.grid, reasons);
    CheckAxes(o, reasons);
    if (o.mode == Mode::kUnion && o.causal_axis) {
      reasons->Invalid("causal_axis must be false when mode is union, got true");
    }
    if (o.mode != Mode::kSingle && o.axis_bias) {
      reasons->Invalid("axis_bias must be false unless mode is single, got true");
    }
    if (const View* grad = problem.Find("grad_lse"); grad != nullptr && o.mode == Mode::kSum) {
      reasons->Invalid("grad_lse must not be sent when mode is sum, got ", ToString(grad->shape));
    }
    CheckBias(problem, o, reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const AxialOptions& o) const override {
    if (o.mode == Mode::kSingle) return Line(ops, in, o, o.FromFront(*o.axis), std::nullopt);
    if (o.mode == Mode::kUnion) {
      return PatternAttend(ops, in, o,
                           [&](const SeenRow& r) { return HeadParts{AxialCross(r, o.grid)}; });
    }
    std::vector<int64_t> axes = o.axes;
    if (axes.empty()) {
      axes.resize(o.grid.size());
      std::iota(axes.begin(), axes.end(), 0);
    }
    Outputs sum;
    for (const int64_t axis : axes) {
      const Outputs line = Line(ops, in, o, o.FromFront(axis), DType::kF32);
      if (!ops.status().ok()) return {};
      sum.out = sum.out.empty() ? line.out : ops.Add(sum.out, line.out);
      sum.visible_pairs.resize(line.visible_pairs.size());
      for (size_t p = 0; p < line.visible_pairs.size(); ++p) {
        sum.visible_pairs[p] += line.visible_pairs[p];
      }
    }
    RowCuts whole;
    for (const ProblemShape& problem : in.problems) whole.push_back({0, problem.Nq});
    sum.out = ops.JoinRows(sum.out, 2, ShapesOf(sum.out), whole, in.q[0].dtype, LayoutsOf(in.q));
    return sum;
  }

 private:
  static std::vector<TensorInfo> AxialInputs() {
    std::vector<TensorInfo> inputs = PatternInputs(kLacks);
    for (TensorInfo& input : inputs) {
      if (input.name != "bias") continue;
      input.shape = "broadcastable to [B,H,M,M]";
      input.help = "added to the scores; -inf hides a pair; M = N, with axis_bias d_a";
    }
    return inputs;
  }

  static void CheckAxes(const AxialOptions& o, Reasons* reasons) {
    if (o.mode == Mode::kSingle && !o.axis.has_value()) {
      reasons->Invalid("axis is required when mode is single, got none");
    }
    if (o.grid.empty() || o.grid.size() > kMostExtents) return;
    const std::string range =
        absl::StrCat(" must be in ", -o.dimensions(), "..", o.dimensions() - 1, ", got ");
    if (o.mode == Mode::kSingle && o.axis.has_value() && !o.Has(*o.axis)) {
      reasons->Invalid("axis", range, *o.axis);
    }
    std::vector<bool> listed(o.grid.size());
    for (size_t i = 0; i < o.axes.size() && o.mode == Mode::kSum; ++i) {
      const bool is_axis = o.Has(o.axes[i]);
      if (!is_axis) {
        reasons->Invalid("axes[", i, "]", range, o.axes[i]);
      } else if (listed[o.FromFront(o.axes[i])]) {
        reasons->Invalid("axes[", i, "] must not repeat an axis, got ", o.axes[i]);
      } else {
        listed[o.FromFront(o.axes[i])] = true;
        continue;
      }
      return;
    }
  }

  static void CheckBias(const ProblemShape& problem, const AxialOptions& o, Reasons* reasons) {
    const View* bias = problem.Find("bias");
    int64_t M = problem.Nq;
    if (o.axis_bias) {
      if (!o.axis.has_value() || !o.Has(*o.axis)) return;
      M = o.grid[o.FromFront(*o.axis)];
      if (M > kMostLabels) {
        reasons->Invalid("grid must be at most ", kMostLabels, " along axis with axis_bias, got ",
                         M);
      }
    }
    if (bias == nullptr || !problem.Knows("q")) return;
    for (int axis = std::max(0, bias->shape.rank - 2); axis < std::min(bias->shape.rank, 4);
         ++axis) {
      if (bias->shape[axis] == 1) continue;
      const SizeRule rule{"broadcastable to [B,H,M,M]", axis, "M", M};
      if (!CheckSize(problem, "bias", rule, reasons)) return;
    }
  }

  static Outputs Line(Ops& ops, const Inputs& in, const AxialOptions& o, int64_t axis,
                      std::optional<DType> dtype) {
    PatternExtras extras{.alibi_unit = static_cast<double>(o.Step(axis)), .dtype = dtype};
    const auto bias = in.tensors.find("bias");
    const bool is_labelled = o.axis_bias && bias != in.tensors.end();
    Inputs inputs = in;
    if (is_labelled) {
      // What cell i adds to a key at coordinate l of its line: row coordinate(i) of the bias.
      extras.table = ByCoordinate(ops, in, bias->second, o, axis);
      extras.cap_table = false;
      inputs.tensors.erase("bias");
    }
    return PatternAttend(
        ops, inputs, o,
        [&](const SeenRow& seen) {
          SeenRow r = seen;
          r.causal = o.causal || o.causal_axis;
          return AllHeads(AxialSource(r, o.grid, axis, is_labelled));
        },
        extras);
  }

  // [B,H,N,d_a].
  static Tensor ByCoordinate(Ops& ops, const Inputs& in, const Tensor& bias, const AxialOptions& o,
                             int64_t axis) {
    const int64_t extent = o.grid[axis];
    std::vector<Shape> planes, lines;
    for (const ProblemShape& problem : in.problems) {
      planes.push_back({problem.B, problem.H, extent, extent});
      lines.push_back({1, 1, problem.Nq});
    }
    std::vector<std::vector<int32_t>> coordinates(in.problems.size());
    if (!ops.stream().is_dry()) {
      std::fill(coordinates.begin(), coordinates.end(), CoordinatesAlong(o.grid, axis));
    }
    const Tensor all = ops.Expand(WithRank(ops, bias, 4), planes);
    return ops.Gather(all, ops.FromHost(lines, coordinates));
  }
};

}  // namespace

ATTND_METHOD(axial, Axial)

}  // namespace attnd
