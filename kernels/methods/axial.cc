// Axial attention (Ho et al. 2019, sections 3-4) on a row-major grid whose cells are the tokens:
//   single: cell i sees the line through it along `axis`; causal_axis: up to its own coordinate
//   union:  the lines along all axes, one softmax;  sum: the sum of the single ones over `axes`
// Along a line causal and causal_axis are the same. ALiBi counts coordinates along the axis (union:
// |i - j|); with axis_bias, bias [..,d_a,d_a] is read by coordinates. Scores, tensors and shapes as
// in softmax; Nq = Nk = N; sum has no lse.
#include <numeric>
#include <set>

#include "kernels/methods/pattern/method.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/shapes/grids.h"

namespace attnd {
namespace {

enum class Mode : uint8_t { kSingle, kUnion, kSum };

struct Options : PatternOptions {
  std::vector<int64_t> grid, axes;
  std::optional<int64_t> axis;
  Mode mode = Mode::kSingle;
  bool causal_axis = false, axis_bias = false;

  int64_t dimensions() const { return static_cast<int64_t>(grid.size()); }
  std::vector<int64_t> AllAxes() const {
    std::vector<int64_t> all(grid.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  int64_t FromFront(int64_t a) const { return a < 0 ? a + dimensions() : a; }
};

constexpr int64_t kMostLabels = 65535;  // columns of a table

class Axial : public PatternMethod<Options> {
 public:
  Axial()
      : PatternMethod(
            {.id = "axial",
             .summary = "The line of a cell along an axis of a grid",
             .reference = "Ho et al. 2019 (arXiv 1912.12180), sections 3-4",
             .cost = "2 (D + Dv) FLOPs per visible pair, n d_a pairs an axis; memory O(n), with "
                     "axis_bias O(n d_a)",
             .unsupported = {.cross = true, .packed = true},
             .inputs = {Differentiable("bias", "broadcastable to [B,H,M,M]",
                                       "added to the scores; -inf hides a pair; M = N, with "
                                       "axis_bias d_a")},
             .options = {
                 IntsOption("grid", &Options::grid, {.min = 1}, "required",
                            "extents, row-major; their product is N"),
                 ReadIf(
                     "mode is single", [](const Options& o) { return o.mode == Mode::kSingle; },
                     IntOption("axis", &Options::axis, {}, "required when mode is single",
                               "-m..m-1 of m extents")),
                 EnumOption("mode", &Options::mode, {"single", "union", "sum"},
                            "one axis, one softmax over all, or the sum of axes"),
                 ReadIf(
                     "mode is sum", [](const Options& o) { return o.mode == Mode::kSum; },
                     IntsOption("axes", &Options::axes, {}, "all", "those that are added up",
                                [](const Options& o, int64_t) { return o.AllAxes(); })),
                 BoolOption("causal_axis", &Options::causal_axis,
                            "sees no larger coordinate along the axis; not of union"),
                 ReadIf(
                     "bias is sent",
                     [](const Options&, const ProblemShape& problem) {
                       return problem.Find("bias") != nullptr;
                     },
                     BoolOption("axis_bias", &Options::axis_bias,
                                "bias is broadcastable to [B,H,d_a,d_a], the same on every line; "
                                "of single"))}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
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

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers&) const override {
    if (o.mode == Mode::kUnion) return {AxialCross(seq, o.grid)};
    SeenSeq line = seq;
    line.causal = o.causal || o.causal_axis;
    const bool is_labelled = o.axis_bias && seq.problem.Find("bias") != nullptr;
    return AllHeads(AxialSource(line, o.grid, o.FromFront(*o.axis), is_labelled));
  }

  Outputs Attend(Ops& ops, const Inputs& in, const Options& o, const Integers& ints,
                 const PatternExtras& extras) const override {
    if (o.mode == Mode::kUnion) return PatternMethod::Attend(ops, in, o, ints, extras);
    if (o.mode == Mode::kSingle) return Line(ops, in, o, ints, extras);
    PatternExtras of_line = extras;
    of_line.dtype = DType::kF32;
    Outputs sum;
    for (const int64_t axis : o.axes.empty() ? o.AllAxes() : o.axes) {
      Options single = o;
      single.axis = axis;
      const Outputs line = Line(ops, in, single, ints, of_line);
      if (!ops.status().ok()) return {};
      sum.out = sum.out.empty() ? line.out : ops.Add(sum.out, line.out);
      AddPairs(line, &sum);
    }
    RowCuts whole;
    for (const ProblemShape& problem : in.problems) whole.push_back({0, problem.Nq});
    sum.out = ops.JoinRows(sum.out, 2, ShapesOf(sum.out), whole, in.q[0].dtype, LayoutsOf(in.q));
    return sum;
  }

 private:
  static void CheckAxes(const Options& o, Reasons* reasons) {
    if (o.mode == Mode::kSingle && !o.axis.has_value()) {
      reasons->Invalid("axis is required when mode is single, got none");
    }
    if (o.grid.empty() || o.grid.size() > kMostExtents) return;
    if (o.mode == Mode::kSingle && o.axis.has_value()) {
      CheckAxis("axis", *o.axis, o.grid, reasons);
    }
    std::set<int64_t> listed;
    for (size_t i = 0; i < o.axes.size() && o.mode == Mode::kSum; ++i) {
      const std::string name = absl::StrCat("axes[", i, "]");
      if (!CheckAxis(name, o.axes[i], o.grid, reasons)) return;
      if (listed.insert(o.FromFront(o.axes[i])).second) continue;
      reasons->Invalid(name, " must not repeat an axis, got ", o.axes[i]);
      return;
    }
  }

  static void CheckBias(const ProblemShape& problem, const Options& o, Reasons* reasons) {
    int64_t M = problem.Nq;
    if (o.axis_bias) {
      const int64_t m = o.dimensions(), axis = o.axis.value_or(m);
      if (axis < -m || axis >= m) return;  // refused by CheckAxes
      M = o.grid[o.FromFront(axis)];
      if (M > kMostLabels) {
        reasons->Invalid("grid must be at most ", kMostLabels, " along axis with axis_bias, got ",
                         M);
      }
    }
    if (problem.HasSizesOf("q")) {
      CheckShape(problem, "bias", "broadcastable to [B,H,M,M]", {{"M", M}}, reasons);
    }
  }

  // Along o.axis.
  Outputs Line(Ops& ops, const Inputs& in, const Options& o, const Integers& ints,
               PatternExtras extras) const {
    const int64_t axis = o.FromFront(*o.axis);
    extras.alibi_unit = static_cast<double>(StepAlong(o.grid, axis));
    const Tensor bias = Sent(in, "bias");
    Options line = o;
    line.mode = Mode::kSingle;
    if (!o.axis_bias || bias.empty()) return PatternMethod::Attend(ops, in, line, ints, extras);
    // What cell i adds to a key at coordinate l of its line: row coordinate(i) of the bias.
    extras.table = ByCoordinate(ops, in, bias, o, axis);
    extras.cap_table = false;
    Inputs inputs = in;
    inputs.tensors.erase("bias");
    return PatternMethod::Attend(ops, inputs, line, ints, extras);
  }

  // [B,H,N,d_a].
  static Tensor ByCoordinate(Ops& ops, const Inputs& in, const Tensor& bias, const Options& o,
                             int64_t axis) {
    std::vector<Shape> planes, lines;
    std::vector<std::vector<int32_t>> coordinates(in.problems.size());
    for (size_t p = 0; p < in.problems.size(); ++p) {
      const ProblemShape& problem = in.problems[p];
      planes.push_back({problem.B, problem.H, o.grid[axis], o.grid[axis]});
      lines.push_back({1, 1, problem.Nq});
      if (!ops.stream().is_dry()) coordinates[p] = CoordinatesAlong(o.grid, axis);
    }
    const Tensor all = ops.Expand(WithRank(ops, bias, 4), planes);
    return ops.Gather(all, ops.FromHost(lines, coordinates));
  }
};

}  // namespace

ATTND_METHOD(axial, Axial)

}  // namespace attnd
