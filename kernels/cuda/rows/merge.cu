#include "kernels/cuda/rows/merge.cuh"

#include <algorithm>

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// `rank`: of the rows, which come last of kMergeRank dimensions.
MergeRows RowsOf(const View& view, int rank) {
  MergeRows rows = {.data = view.data, .dtype = view.dtype, .stride = {}};
  for (int i = 0; view.given() && i < rank; ++i) {
    rows.stride[kMergeRank - rank + i] = view.stride[i];
  }
  return rows;
}

// Makes one dimension of those whose rows lie evenly in all views, and moves the rest to the end.
void JoinDims(MergeOver* over, MergePartRows* parts) {
  std::vector<MergeRows*> all = {&over->out, &over->lse, &over->lse_low, &over->dout, &over->dlse};
  for (int i = 0; i < over->parts; ++i) {
    all.insert(all.end(),
               {&parts[i].out, &parts[i].lse, &parts[i].lse_low, &parts[i].dout, &parts[i].dlse});
  }
  const auto move = [&](int from, int to) {
    over->dims[to] = over->dims[from];
    for (MergeRows* rows : all) rows->stride[to] = rows->stride[from];
  };
  int last = kMergeRank - 1;
  for (int i = kMergeRank - 2; i >= 0; --i) {
    if (over->dims[i] == 1) continue;
    const bool joins = std::all_of(all.begin(), all.end(), [&](const MergeRows* rows) {
      return rows->stride[i] == rows->stride[last] * over->dims[last];
    });
    if (joins) {
      over->dims[last] *= over->dims[i];
    } else if (over->dims[last] == 1) {
      move(i, last);
    } else {
      move(i, --last);
    }
  }
  for (int i = 0; i < last; ++i) over->dims[i] = 1;
  over->first_dim = last;
}

// The problems of a launch, and the parts of those that have more than few.
class MergeList {
 public:
  // `dout`, `dlse` and `dparts`: of a gradient.
  void Add(const MergeProblem& p, const View& dout, const View& dlse,
           const std::vector<MergePart>& dparts) {
    const int rank = p.lse.shape.rank, parts = static_cast<int>(p.parts.size());
    const bool has_few = parts <= kMergeFew;
    MergeOver over = {.out = RowsOf(p.out, rank),
                      .lse = RowsOf(p.lse, rank),
                      .lse_low = RowsOf(p.lse_low, rank),
                      .dout = RowsOf(dout, rank),
                      .dlse = RowsOf(dlse, rank),
                      .few = {},
                      .first_part = has_few ? -1 : static_cast<int64_t>(table_.size()),
                      .parts = parts,
                      .dims = {1, 1, 1, 1, 1},
                      .first_dim = kMergeRank - 1,
                      .rows = p.lse.shape.size(),
                      .Dv = p.out.shape[rank],
                      .by_quads = HasQuads(p.out) && (!dout.given() || HasQuads(dout)),
                      .group_log2 = 0};
    for (int i = 0; i < rank; ++i) over.dims[kMergeRank - rank + i] = p.lse.shape[i];
    for (size_t i = 0; i < p.parts.size(); ++i) {
      const MergePart grad = i < dparts.size() ? dparts[i] : MergePart{};
      const MergePartRows rows = {RowsOf(p.parts[i].out, rank), RowsOf(p.parts[i].lse, rank),
                                  RowsOf(p.parts[i].lse_low, rank), RowsOf(grad.out, rank),
                                  RowsOf(grad.lse, rank)};
      over.by_quads =
          over.by_quads && HasQuads(p.parts[i].out) && (!grad.out.given() || HasQuads(grad.out));
      if (has_few) {
        over.few[i] = rows;
      } else {
        table_.push_back(rows);
      }
    }
    if (!has_few) {
      most_shares_ = std::max(most_shares_, ShareOf<MergePartRows>(parts));
      ++in_table_;
    }
    JoinDims(&over, has_few ? over.few : &table_[table_.size() - p.parts.size()]);
    // A gradient takes four columns a thread in any case.
    const bool by_four = over.by_quads || !dparts.empty();
    over.group_log2 = static_cast<uint8_t>(Log2Up(by_four ? DivideUp(over.Dv, kQuad) : over.Dv, 5));
    list_.Add(over, DivideUp(over.rows, kMergeThreads >> over.group_log2));
  }

  DeviceStatus Launch(CudaDevice& device, Stream& stream, double bytes,
                      void (*kernel)(Problems<MergeOver>, const MergePartRows*)) {
    Table table;
    if (!table_.empty() && !list_.empty()) {
      const std::span<const std::byte> pieces[] = {BytesOf(table_)};
      table = NewTable(stream, stream.alike().ProblemsOf(in_table_) * most_shares_, pieces);
      if (!table.status.ok()) return table.status;
    }
    const LaunchShape shape = {.threads = kMergeThreads,
                               .seconds = CudaOf(device).Seconds(0, bytes)};
    return LaunchOver(device, stream, shape, kernel, list_,
                      table.buffer == nullptr ? nullptr : table.As<MergePartRows>());
  }

 private:
  ProblemList<MergeOver> list_;
  std::vector<MergePartRows> table_;
  int64_t in_table_ = 0, most_shares_ = 0;  // problems in it, and of one of them
};

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const MergeArgs& args) {
  MergeList list;
  double bytes = 0;
  for (const MergeProblem& p : args.problems) {
    list.Add(p, {}, {}, {});
    bytes += static_cast<double>(p.out.bytes());
    for (const MergePart& part : p.parts) {
      bytes += static_cast<double>(part.out.bytes() + part.lse.bytes());
    }
  }
  return list.Launch(device, stream, bytes, MergeKernel);
}

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const MergeGradArgs& args) {
  MergeList list;
  double bytes = 0;
  for (const MergeGradProblem& p : args.problems) {
    list.Add(p.forward, p.dout, p.dlse, p.dparts);
    bytes += 2.0 * static_cast<double>(p.forward.out.bytes());
    for (const MergePart& part : p.forward.parts) {
      bytes += 2.0 * static_cast<double>(part.out.bytes() + part.lse.bytes());
    }
  }
  return list.Launch(device, stream, bytes, MergeGradKernel);
}

}  // namespace attnd::cuda
