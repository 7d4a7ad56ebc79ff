#include "kernels/ops/ops.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"
#include "kernels/ops/status_of.h"
#include "kernels/pattern/counts.h"

namespace attnd {

Ops::Ops(Stream& stream, Tape* tape, PatternCache* patterns, DrawCache* draws)
    : stream_(stream), tape_(tape), patterns_(patterns), draws_(draws) {}

void Ops::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

bool Ops::Require(bool holds, absl::string_view primitive, absl::string_view rule) {
  if (!status_.ok()) return false;
  if (!holds) Fail(absl::InternalError(absl::StrCat(primitive, ": ", rule)));
  return holds;
}

bool Ops::Records(std::initializer_list<const Tensor*> inputs) const {
  if (tape_ == nullptr || !recording_) return false;
  return std::any_of(inputs.begin(), inputs.end(), [this](const Tensor* input) {
    return !input->empty() && tape_->IsWatched(*input);
  });
}

void Ops::Run(Launch launch) {
  const bool ran = TryRun(std::move(launch));
  Require(ran, "device", "must run every launch that has no composition");
}

bool Ops::TryRun(Launch launch) {
  if (!status_.ok()) return true;
  if (stream_.is_dry()) {
    // What the host takes to list a problem; measured with sequences of a few rows.
    constexpr double kSecondsPerProblem = 1e-6;
    const size_t entries =
        std::visit([](const auto& args) { return args.problems.size(); }, launch);
    stream_.work().seconds += kSecondsPerProblem * static_cast<double>(ProblemsOf(entries));
  }
  const DeviceStatus status = stream_.device().Run(stream_, std::move(launch));
  if (status.code() == DeviceStatus::Code::kDeclined) return false;
  Fail(StatusOf(status));
  return true;
}

bool Ops::Declines(Launch empty) const {
  Stream dry(stream_.device(), nullptr);
  return dry.device().Run(dry, std::move(empty)).code() == DeviceStatus::Code::kDeclined;
}

void Ops::CopyInto(const std::vector<View>& from, const std::vector<View>& to) {
  if (!status_.ok()) return;
  std::vector<ElementwiseProblem> problems;
  for (size_t p = 0; p < from.size(); ++p) problems.push_back({.a = from[p], .out = to[p]});
  Run(ElementwiseArgs{.op = ElementOp::kCopy, .problems = std::move(problems)});
}

void Ops::CountAlike(const SeqCounts& counts) {
  if (counts.empty() || !stream_.is_dry()) return;
  alike_.clear();
  AlikeProblems all{.entries = 0, .problems = 0};
  for (const std::vector<int64_t>& list : counts) {
    alike_.insert(alike_.end(), list.begin(), list.end());
    for (const int64_t count : list) {
      all = {all.entries + 1, all.problems + count, std::max(all.most, count)};
    }
  }
  if (all.entries > 0) stream_.alike() = all;
  stands_for_several_ = std::any_of(alike_.begin(), alike_.end(), [](int64_t n) { return n > 1; });
}

int64_t Ops::CountAt(size_t entries, size_t p) const {
  // A list that is m times as long holds m parts of each.
  if (alike_.empty() || entries % alike_.size() != 0) return 1;
  return alike_[p / (entries / alike_.size())];
}

int64_t Ops::ProblemsOf(size_t entries) const {
  int64_t problems = 0;
  for (size_t p = 0; p < entries && alike_.size() > 1; ++p) problems += CountAt(entries, p);
  return problems;
}

int64_t Ops::PlannedBytes(const std::vector<Shape>& shapes, size_t p, int64_t bytes) const {
  const int64_t count = CountAt(shapes.size(), p);
  if (count == 1) return bytes;
  // If the first dimension counts them, one tensor holds all; else each problem has a tensor of
  // this shape. A run rounds up each tensor on its own: RoundedBytes.
  const int64_t all = shapes[p].rank > 0 && shapes[p][0] % count == 0 ? bytes : bytes * count;
  return all + all / 8 + 64 * count;
}

Tensor Ops::Empty(DType dtype, const std::vector<Shape>& shapes,
                  const std::vector<Layout>& layouts) {
  if (!status_.ok()) return {};
  // Views, buffers and what a launch lists of them, of a tensor and of views of it.
  constexpr int64_t kHostBytesPerProblem = 1200;
  if (stream_.is_dry()) {
    stream_.work().host_bytes += kHostBytesPerProblem * ProblemsOf(shapes.size());
  }
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < shapes.size(); ++p) {
    const int64_t bytes = PlannedBytes(shapes, p, shapes[p].size() * SizeOf(dtype));
    buffers.push_back(stream_.workspace().Allocate(bytes));
    if (buffers.back() == nullptr) {
      Fail(absl::ResourceExhaustedError(absl::StrCat("no memory left for ", bytes, " bytes")));
      return {};
    }
    const Layout layout = layouts.empty() ? Layout::kBHND : layouts[p];
    views.push_back(DenseView(buffers.back()->data(), dtype, shapes[p], layout));
  }
  return Tensor(std::move(views), std::move(buffers));
}

namespace {

// A list of dense tensors with these elements; a dry stream reads none.
template <class T>
Tensor Uploaded(Ops& ops, DType dtype, const std::vector<Shape>& shapes,
                std::vector<std::vector<T>> of_problems) {
  const auto source = std::make_shared<const std::vector<std::vector<T>>>(std::move(of_problems));
  const std::vector<std::vector<T>>& values = *source;
  const bool dry = ops.stream().is_dry();
  bool fits = values.size() == shapes.size();
  for (size_t p = 0; fits && !dry && p < shapes.size(); ++p) {
    fits = static_cast<int64_t>(values[p].size()) == shapes[p].size();
  }
  if (!ops.Require(fits, "from_host", "as many values as elements")) return {};
  // One array holds them all, one behind the other: one upload.
  int64_t bytes = 0;
  std::vector<std::span<const std::byte>> parts;
  for (size_t p = 0; p < shapes.size(); ++p) {
    bytes += RoundUp(ops.PlannedBytes(shapes, p, shapes[p].size() * SizeOf(dtype)), 64);
    if (!dry) parts.push_back(std::as_bytes(std::span<const T>(values[p])));
  }
  const std::shared_ptr<Buffer> all = ops.stream().workspace().AllocateShared(bytes);
  if (all == nullptr) {
    ops.Fail(absl::ResourceExhaustedError(absl::StrCat("no memory left for ", bytes, " bytes")));
    return {};
  }
  if (dry) ops.stream().work().host_bytes += bytes;
  ops.Fail(StatusOf(ops.stream().device().Upload(ops.stream(), all->data(), parts, source)));
  std::vector<View> views;
  char* data = static_cast<char*>(all->data());
  for (const Shape& shape : shapes) {
    views.push_back(DenseView(data, dtype, shape));
    if (data != nullptr) data += views.back().bytes();
  }
  const std::vector<std::shared_ptr<Buffer>> owners(shapes.size(), all);
  return ops.status().ok() ? Tensor(std::move(views), owners) : Tensor();
}

}  // namespace

Tensor Ops::FromHost(const std::vector<Shape>& shapes, std::vector<std::vector<float>> values) {
  return Uploaded(*this, DType::kF32, shapes, std::move(values));
}

Tensor Ops::FromHost(const std::vector<Shape>& shapes, std::vector<std::vector<int32_t>> values) {
  return Uploaded(*this, DType::kI32, shapes, std::move(values));
}

std::vector<std::vector<int32_t>> Ops::ToHost(const Tensor& x) {
  if (!Require(!x.empty() && x[0].dtype == DType::kI32, "to_host", "x must be int32")) return {};
  std::vector<std::vector<int32_t>> values(x.size());
  const Tensor dense = Empty(DType::kI32, ShapesOf(x));
  CopyInto(ViewsOf(x), ViewsOf(dense));
  for (size_t p = 0; p < dense.size() && status_.ok(); ++p) {
    if (stream_.is_dry()) {
      stream_.work().host_bytes += PlannedBytes(ShapesOf(x), p, x[p].bytes());
      continue;
    }
    values[p].resize(static_cast<size_t>(x[p].shape.size()));
    Fail(StatusOf(stream_.device().Download(stream_, dense[p].data,
                                            std::as_writable_bytes(std::span(values[p])))));
  }
  if (stream_.is_dry() || !status_.ok()) return values;
  Fail(StatusOf(stream_.Wait()));
  if (stream_.stopped()) Fail(StoppedStatus());
  if (!status_.ok()) return {};
  return values;
}

AttendSeq Ops::Seq(int64_t nq, int64_t nk, const PatternSource& source) {
  return Seq(nq, nk, std::vector<PatternSource>{source});
}

AttendSeq Ops::Seq(int64_t nq, int64_t nk, const std::vector<PatternSource>& heads) {
  AttendSeq seq{.nq = nq, .nk = nk, .patterns = 0};
  const bool counts_pairs = std::any_of(heads.begin(), heads.end(),
                                        [](const PatternSource& head) { return !head.is_counted; });
  // Those of one key are one, whether a cache holds it or not.
  std::map<std::string_view, std::shared_ptr<const Pattern>> patterns;
  for (const PatternSource& head : heads) {
    // A pattern that was built by a stopped run is incomplete.
    if (CheckPoint()) Fail(StoppedStatus());
    if (!status_.ok()) return seq;
    PatternCounts counts{head.visible_pairs, head.visible_tiles};
    seq.gathers = seq.gathers || head.gathers;
    seq.is_listed = head.is_listed;
    seq.longest_list = std::max(seq.longest_list, head.longest_list);
    if (stream_.is_dry()) {
      seq.is_counted = seq.is_counted && head.is_counted;
      if (!head.knows_pairs) EstimatePairs();
    }
    const auto [known, is_added] = patterns.try_emplace(head.key);
    const bool is_new = is_added || head.key.empty();
    if (is_new) {
      seq.patterns += head.patterns;
      seq.pattern_tiles +=
          static_cast<double>(head.patterns) * std::max(head.visible_tiles, head.most_tiles);
      seq.pattern_bytes += head.host.bytes;
    }
    seq.term_bytes = std::max(seq.term_bytes, head.term_bytes);
    if (stream_.is_dry() && is_new) {
      stream_.work().host_bytes += head.host.bytes;
      stream_.work().seconds += head.host.seconds;
    }
    if (head.build != nullptr && !stream_.is_dry()) {
      std::shared_ptr<const Pattern>& pattern = known->second;
      if (is_new) {
        pattern = patterns_ != nullptr ? patterns_->Get(head)
                                       : std::make_shared<const Pattern>(head.build());
      }
      if (counts_pairs) counts = CountsOf(*pattern, {nq, nk});
      if (counts_pairs && !pattern->counts_pairs && seq.pair_count == nullptr) {
        seq.pair_count = std::make_shared<PairCount>();
      }
      seq.head_patterns.push_back(pattern);
    } else {
      seq.head_patterns.push_back(nullptr);
    }
    seq.visible_pairs += counts.pairs;
    seq.visible_tiles += counts.tiles;
    seq.mask_seconds += head.mask_seconds;
  }
  seq.visible_pairs /= static_cast<double>(heads.size());
  seq.visible_tiles /= static_cast<double>(heads.size());
  seq.mask_seconds /= static_cast<double>(heads.size());
  if (heads.size() == 1) seq.pattern = std::move(seq.head_patterns[0]);
  if (heads.size() == 1 || stream_.is_dry()) seq.head_patterns.clear();
  return seq;
}

std::vector<Shape> ShapesOf(const Tensor& x) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) shapes.push_back(x[p].shape);
  return shapes;
}

std::vector<Layout> LayoutsOf(const Tensor& x) {
  std::vector<Layout> layouts;
  for (size_t p = 0; p < x.size(); ++p) layouts.push_back(x[p].layout);
  return layouts;
}

std::vector<View> ViewsOf(const Tensor& x) {
  std::vector<View> views;
  for (size_t p = 0; p < x.size(); ++p) views.push_back(x[p]);
  return views;
}

View ViewOf(const Tensor& x, size_t problem) { return x.empty() ? View{} : x[problem]; }

}  // namespace attnd
