// The primitives that methods call, over ragged tensors, with a sticky status.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/random_table.h"
#include "kernels/device/device.h"
#include "kernels/ops/attend.h"
#include "kernels/ops/conv1d.h"
#include "kernels/ops/gather.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/pool.h"
#include "kernels/ops/random_features.h"
#include "kernels/ops/scan.h"
#include "kernels/ops/tape.h"
#include "kernels/ops/tensor.h"
#include "kernels/pattern/cache.h"

namespace attnd {

class DrawCache;  // kernels/ops/draw_cache.h

// Per problem: from 0 to the size of an axis, non-decreasing, at least one segment.
using RowCuts = std::vector<std::vector<int64_t>>;
// How many equal sequences or segments each entry of such a list stands for; empty: one each.
using SeqCounts = std::vector<std::vector<int64_t>>;

// Each call launches once for the whole list of problems and returns at once with new tensors.
// Errors are sticky: the first failure is kept in status(), later calls return empty tensors, so a
// method reads like its formula. Check and Plan refuse invalid requests; the checks here are those
// of the contracts of primitives. Single-threaded. On a dry stream, which plans use, nothing is
// computed and tensors have no data.
//
// Tensors are float32 unless a method's own come in another dtype: every primitive reads any float
// dtype and writes float32 or the dtype in its arguments. Axes count from 0, negative ones
// from the end. "Per problem" lists hold one entry a problem.
class Ops {
 public:
  // `tape` null: nothing is recorded. `patterns` null: patterns are built anew each time. `draws`
  // null: tables are drawn anew each time.
  Ops(Stream& stream, Tape* tape, PatternCache* patterns = nullptr, DrawCache* draws = nullptr);

  // --- attention: attend.h, merge.h, scan.h
  AttendOut Attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendParams& params,
                   const AttendSeqs& seqs, const AttendTensors& terms = {});
  // A pattern in disjoint parts, one launch each, merged by log-sum-exp; more than one: softmax
  // only. out of `dtype`; absent: that of q.
  AttendOut Attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendParams& params,
                   const std::vector<AttendSeqs>& parts, const AttendTensors& terms = {},
                   std::optional<DType> dtype = {});
  // sum_i P_ij of every key row, [B,H,Nk] float32, from lse and lse_low of an Attend over the same
  // seqs and terms. A constant.
  Tensor ColumnMass(const Tensor& q, const Tensor& k, const AttendParams& params,
                    const AttendSeqs& seqs, const AttendOut& attended,
                    const AttendTensors& terms = {});
  // Parts over disjoint keys. out of `dtype` and of the first part's shape.
  AttendOut Merge(const std::vector<AttendOut>& parts, DType dtype = DType::kF32);
  ScanOut Scan(const Tensor& q, const Tensor& k, const Tensor& v, const ScanParams& params,
               const ScanSeqs& seqs, const ScanTensors& tensors = {});
  // What one sequence sees: all heads the same, or H sources, one a query head. On a dry stream
  // only their counts are used.
  AttendSeq Seq(int64_t nq, int64_t nk, const std::vector<PatternSource>& heads);
  AttendSeq Seq(int64_t nq, int64_t nk, const PatternSource& source);

  // --- products: matmul.h, conv1d.h, fft.h, random_features.h
  // Ranks equal; leading dimensions broadcast. bias and multiply broadcast to the result.
  Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulParams& params = {},
                const Tensor& bias = {}, const Tensor& multiply = {});
  // x [B,H,N,I], weight [B|1,H|1,O,I,w], bias [B|1,H|1,O] or empty -> [B,H,columns,O].
  Tensor Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Conv1dParams& params);
  // x [B,H,N,D], weight [H|1,w] -> [B,H,N,D].
  Tensor DepthwiseConv1d(const Tensor& x, const Tensor& weight, int64_t left);
  // is_returned: as in MatMulParams.
  Tensor RealFft2(const Tensor& x, bool is_returned = false);
  // x [B,H,N,D], w [1,Hw,m,D] float32 with contiguous rows; problems that share w have views of one
  // tensor, since a plan takes equal shapes for one. Gradients flow from phi to x and w.
  RandomFeaturesOut RandomFeatures(const Tensor& x, const Tensor& w,
                                   const RandomFeaturesParams& params);

  // --- elementwise: elementwise.h. Operands broadcast to the largest.
  Tensor Apply(ElementOp op, const Tensor& a, DType dtype = DType::kF32);
  Tensor Apply(ElementOp op, const Tensor& a, const Tensor& b, DType dtype = DType::kF32);
  // a != 0 ? b : c.
  Tensor Select(const Tensor& a, const Tensor& b, const Tensor& c);
  Tensor Affine(const Tensor& a, double alpha, double beta = 0, DType dtype = DType::kF32);
  // a + b of one shape; dtype and layout of a. A tape adds gradients with it.
  Tensor Add(const Tensor& a, const Tensor& b);

  // --- along an axis: reduce.h, pool.h
  // Keeps the axis, with 1. kMax: the gradient flows to the lowest index of the largest.
  Tensor Reduce(ReduceOp op, const Tensor& x, int axis);
  // Sums what a tensor of `shapes` (per problem, 1 where it repeats) would repeat.
  Tensor SumTo(const Tensor& x, const std::vector<Shape>& shapes);
  Tensor Softmax(const Tensor& x, int axis);
  Tensor LogSoftmax(const Tensor& x, int axis);
  Tensor Cumulative(CumulativeOp op, const Tensor& x, int axis, bool exclusive = false,
                    bool reverse = false);
  // Over the last axis; weight and bias broadcast to x, empty: 1 and 0.
  Tensor LayerNorm(const Tensor& x, double eps, const Tensor& weight = {}, const Tensor& bias = {});
  // x [.., N, D] -> [.., ranges.size(), D]; ranges per problem.
  Tensor Pool(PoolOp op, const Tensor& x, const std::vector<std::vector<RowRange>>& ranges);

  // --- rows by index: gather.h. Index tensors are int32 and constants.
  Tensor Gather(const Tensor& x, const Tensor& index);
  // x [.., N, K], rows [.., M], columns [.., W] -> [.., M, W]: every row with every column. No list
  // should name one twice: ScatterRowsProblem says why.
  Tensor GatherPairs(const Tensor& x, const Tensor& rows, const Tensor& columns);
  // rows: of the result, per problem.
  Tensor Scatter(const Tensor& x, const Tensor& index, const std::vector<int64_t>& rows,
                 const ScatterParams& params = {});
  // Of the last axis: the first `count` (per problem) indices in order.
  Tensor Sort(const Tensor& x, const std::vector<int64_t>& count, bool descending = false);
  // The `count` largest, ties to the lowest index; largest first or, by_index, lowest index first.
  Tensor TopK(const Tensor& x, const std::vector<int64_t>& count, bool by_index = false);
  // int32, over the last axis, which becomes 1. Ties to the lowest index.
  Tensor ArgMax(const Tensor& x);
  // The same of x followed by -x: n + i stands for -x_i.
  Tensor ArgMaxSigned(const Tensor& x);

  // --- views: nothing is computed or copied. shapes: per problem.
  // The same elements in row-major order; copies where strides do not allow a view.
  Tensor Reshape(const Tensor& x, const std::vector<Shape>& shapes);
  Tensor Transpose(const Tensor& x, int axis1, int axis2);
  // Elements begin, begin + step, .. below end of an axis; per problem, or one for all.
  Tensor Slice(const Tensor& x, int axis, const std::vector<int64_t>& begin,
               const std::vector<int64_t>& end, int64_t step = 1);
  // Repeats dimensions of 1, without a copy.
  Tensor Expand(const Tensor& x, const std::vector<Shape>& shapes);
  // [.., N, D] -> [.., columns, width, D]: row t of window c is row c stride + t dilation of x.
  // REQUIRES: all inside. columns per problem.
  Tensor Unfold(const Tensor& x, const std::vector<int64_t>& columns, int64_t width, int64_t stride,
                int64_t dilation);
  // One problem for each sequence, cut to lengths[problem][b] along axis 2 (axis 1 of rank 2, e.g.
  // [B,N]): results of primitives over it cannot depend on padding. `counts`: the sequences of each
  // length, which are one problem: neighbours in the batch, on a dry stream any, which it counts as
  // several problems unless they are the whole batch.
  Tensor SplitBatch(const Tensor& x, const std::vector<std::vector<int64_t>>& lengths,
                    const SeqCounts& counts = {});
  // The reverse: `shapes` of the whole tensors; `fill` beyond the lengths. Copies.
  Tensor JoinBatch(const Tensor& x, const std::vector<Shape>& shapes, float fill = 0,
                   DType dtype = DType::kF32, const std::vector<Layout>& layouts = {});
  // One problem for each segment [cuts[s], cuts[s + 1]) of an axis, in order: packed sequences as
  // problems of their own. A dimension of 1 may repeat: every segment sees it.
  // `counts`, on a dry stream only: each stretch holds this many segments of one length, which are
  // one problem with this many sequences. Their lengths may then add up to more than the axis.
  // REQUIRES: with counts, the first dimension of x is that of the batch and is 1.
  Tensor SplitRows(const Tensor& x, int axis, const RowCuts& cuts, const SeqCounts& counts = {});
  // The reverse; `shapes` of the whole tensors. Copies.
  Tensor JoinRows(const Tensor& x, int axis, const std::vector<Shape>& shapes, const RowCuts& cuts,
                  DType dtype = DType::kF32, const std::vector<Layout>& layouts = {},
                  const SeqCounts& counts = {});
  // The same value without a gradient.
  Tensor Stop(const Tensor& x);

  // --- new tensors
  // Dense, of one dtype.
  Tensor Copy(const Tensor& x, DType dtype = DType::kF32);
  // Parts side by side, float32 or int32. Copies, but for problems that are all in one part.
  Tensor Concat(const std::vector<Tensor>& parts, int axis);
  // One number, repeated by strides of 0.
  Tensor Constant(float value, const std::vector<Shape>& shapes);
  // values[problem] in row-major order.
  Tensor FromHost(const std::vector<Shape>& shapes, std::vector<std::vector<float>> values);
  Tensor FromHost(const std::vector<Shape>& shapes, std::vector<std::vector<int32_t>> values);
  // The elements of an int32 tensor of each problem in row-major order, once they are computed: it
  // waits for the stream. Empty on a dry stream and after a failure.
  std::vector<std::vector<int32_t>> ToHost(const Tensor& x);
  // Row-major tables from a seed, random_table.h; problems of equal params and shapes share one. A
  // constant. `params`: of all problems, or of each.
  Tensor Draw(const DrawParams& params, const std::vector<Shape>& shapes);
  Tensor Draw(const std::vector<DrawParams>& params, const std::vector<Shape>& shapes);
  // Fresh memory, one dense array a problem. `layouts` empty: row-major.
  Tensor Empty(DType dtype, const std::vector<Shape>& shapes,
               const std::vector<Layout>& layouts = {});

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status);  // keeps the first
  Stream& stream() { return stream_; }
  Tape* tape() { return tape_; }
  // While false, calls are not recorded (gradient rules run so).
  void set_recording(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  // AttendGradArgs::is_deterministic of all launches.
  void set_deterministic(bool on) { is_deterministic_ = on; }
  bool is_deterministic() const { return is_deterministic_; }
  // Of a dry run: Work::visible_pairs depends on what a plan does not read or describe.
  void EstimatePairs(bool on = true) { estimates_pairs_ = on; }
  bool estimates_pairs() const { return estimates_pairs_; }
  // Whether the run is asked for gradients: what a formula returns, and no gradient rule reads,
  // need not be computed.
  bool wants_gradients_alone() const { return tape_ != nullptr && recording_; }
  // Whether the device declines launches of this kind: compositions take their place.
  bool Declines(Launch empty) const;

  // --- for the files that implement primitives
  // Runs a launch on the device and keeps its failure.
  void Run(Launch launch);
  // The same; false: the device declines it, and the primitive must be composed from others.
  bool TryRun(Launch launch);
  // Whether a call must be recorded. An empty tensor is no input.
  bool Records(std::initializer_list<const Tensor*> inputs) const;
  // Refuses a call whose contract is broken: INTERNAL, "primitive: rule". False if it or an earlier
  // call failed.
  bool Require(bool holds, absl::string_view primitive, absl::string_view rule);
  // Copies `from` into `to`, of equal shapes or broadcast to them, converting dtypes; one launch.
  void CopyInto(const std::vector<View>& from, const std::vector<View>& to);

  // Bytes of the p-th of these shapes, which on a dry stream may stand for several problems.
  int64_t PlannedBytes(const std::vector<Shape>& shapes, size_t p, int64_t bytes) const;
  // Whether each entry of a list stands for one problem with its own sizes, as in a run: what needs
  // no memory here needs none there. Of a plan whose entries stand for several, sizes may be
  // rounded up.
  bool CountsEach() const { return !stands_for_several_; }

 private:
  // On a dry stream: each entry of a list as long as `counts` then stands for that many problems.
  void CountAlike(const SeqCounts& counts);
  // Problems of a run that the p-th of so many entries stands for; 1 in a run.
  int64_t CountAt(size_t entries, size_t p) const;
  // Those that all entries stand for, where sequences are problems of their own; else 0.
  int64_t ProblemsOf(size_t entries) const;
  // Null: it failed.
  std::shared_ptr<Buffer> Drawn(const DrawParams& params, const Shape& shape);
  // The same values seen through `views`, with the gradient rule of one input.
  Tensor Viewed(const Tensor& x, std::vector<View> views, GradRule rule);

  Stream& stream_;
  Tape* const tape_;
  PatternCache* const patterns_;
  DrawCache* const draws_;
  absl::Status status_;
  std::vector<int64_t> alike_;  // CountAlike
  bool stands_for_several_ = false;
  bool recording_ = true;
  bool is_deterministic_ = true;
  bool estimates_pairs_ = false;
};

// Shapes, layouts and views of a tensor's problems.
std::vector<Shape> ShapesOf(const Tensor& x);
std::vector<Layout> LayoutsOf(const Tensor& x);
std::vector<View> ViewsOf(const Tensor& x);
// The problem's view, View{} of an empty tensor.
View ViewOf(const Tensor& x, size_t problem);
// Whether the elements of each row lie side by side, as launches want them.
bool HasContiguousRows(const Tensor& x);
// x where they do; else a float32 copy.
Tensor WithContiguousRows(Ops& ops, const Tensor& x);
// One number that broadcasts to every problem of `like`.
Tensor NumberLike(Ops& ops, float value, const Tensor& like);
// Axis of a tensor of `rank` dimensions: negative ones count from the end.
inline int AxisOf(int axis, int rank) { return axis < 0 ? axis + rank : axis; }

}  // namespace attnd
