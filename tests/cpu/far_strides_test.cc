// Primitives over arrays whose parts lie more than 2^32 elements apart, on mappings that have
// memory only where it is touched: the bits are those of the same problem in ordinary memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/device/launch.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"
#include "tests/cpu/scan_case.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Mapping() {
    if (given()) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool given() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

// f(address) for every element of a view, the last axis fastest.
template <class F>
void ForEachElement(const View& view, const F& f) {
  ForEachIndex(view.shape, [&](const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (int i = 0; i < view.shape.rank; ++i) at += index[i] * view.stride[i];
    f(view.As<std::byte>() + at * SizeOf(view.dtype));
  });
}

std::vector<std::byte> Elements(const View& view) {
  std::vector<std::byte> bytes;
  if (!view.given()) return bytes;
  ForEachElement(view,
                 [&](std::byte* at) { bytes.insert(bytes.end(), at, at + SizeOf(view.dtype)); });
  return bytes;
}

std::vector<View> ViewsOf(const Launch& launch) {
  std::vector<View> views;
  ForEachView(launch, [&](const View& view) { views.push_back(view); });
  return views;
}

// A launch over arrays of which one dimension goes beyond 2^32 elements. One that has no such
// dimension, or repeats along it, is only copied.
class FarLaunch {
 public:
  // `elements`: what the views of `near` hold at first, in their order.
  FarLaunch(const Launch& near, const std::vector<std::vector<std::byte>>& elements, int dimension)
      : launch_(near), dimension_(dimension) {
    size_t n = 0;
    ForEachView(launch_, [&](const View& view) {
      // The launch is a copy of our own.
      if (view.given()) Move(elements[n], const_cast<View*>(&view));
      ++n;
    });
  }
  const Launch& launch() const { return launch_; }

 private:
  void Move(const std::vector<std::byte>& elements, View* view) {
    const int64_t n = view->shape[dimension_];
    const bool moves = dimension_ < view->shape.rank && n > 1 && view->stride[dimension_] != 0;
    // More than the other dimensions span.
    if (moves) view->stride[dimension_] = (int64_t{1} << 32) / (n - 1) + 3 * view->shape.size() + 5;
    int64_t last = 0;
    for (int i = 0; i < view->shape.rank; ++i) {
      last += std::max<int64_t>(view->shape[i] - 1, 0) * view->stride[i];
    }
    memory_.push_back(
        std::make_unique<Mapping>(static_cast<size_t>((last + 1) * SizeOf(view->dtype))));
    ASSERT_TRUE(memory_.back()->given());
    view->data = memory_.back()->data();
    const std::byte* from = elements.data();
    const int64_t size = SizeOf(view->dtype);
    ForEachElement(*view, [&](std::byte* to) {
      std::memcpy(to, from, static_cast<size_t>(size));
      from += size;
    });
  }

  Launch launch_;
  const int dimension_;
  std::vector<std::unique_ptr<Mapping>> memory_;
};

class FarStrides : public ::testing::TestWithParam<std::string> {
 protected:
  // Of a launch over arrays in ordinary memory, whose outputs hold NaN. `dimensions`: those that
  // may have any stride.
  void ExpectSameBits(const Launch& near, int dimensions) {
    Device& device = CpuOf(GetParam(), 2);
    const std::vector<View> views = ViewsOf(near);
    std::vector<std::vector<std::byte>> before;
    for (const View& view : views) before.push_back(Elements(view));
    RunOn(device, [&](Stream& stream) { return device.Run(stream, near); });
    for (int dimension = 0; dimension < dimensions; ++dimension) {
      const FarLaunch far(near, before, dimension);
      ASSERT_FALSE(HasFatalFailure());
      RunOn(device, [&](Stream& stream) { return device.Run(stream, far.launch()); });
      const std::vector<View> far_views = ViewsOf(far.launch());
      for (size_t n = 0; n < views.size(); ++n) {
        EXPECT_EQ(Elements(far_views[n]), Elements(views[n]))
            << "array " << n << " " << ToString(views[n].shape) << ", dimension " << dimension;
      }
    }
  }
  void ExpectForward(const TermsSizes& sizes) {
    SCOPED_TRACE(sizes.ToString());
    const TermsCase c(sizes, 1);
    ExpectSameBits(AttendArgs{.params = sizes.params, .problems = {c.Problem()}}, 3);
  }
  void ExpectBackward(const GradSizes& sizes) {
    SCOPED_TRACE(::testing::Message() << "slots " << static_cast<int>(sizes.slots));
    const GradCase c(sizes, 1);
    AttendGradProblem problem = c.Problem();
    problem.dterms = {};  // dense by contract
    ExpectSameBits(AttendGradArgs{.params = c.Params(), .problems = {problem}}, 3);
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, FarStrides, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(FarStrides, Attend) {
  TermsSizes sizes{.Nq = 5, .Nk = 70, .has_pattern = false};
  ExpectForward(sizes);
  sizes.q = sizes.k = DType::kBF16;
  sizes.v = sizes.out = DType::kF16;
  ExpectForward(sizes);
  sizes.has_pattern = true;
  sizes.bias = sizes.table = true;
  sizes.L = 9;
  ExpectForward(sizes);
  sizes = {.Nq = 5, .Nk = 70, .per_head = true, .gathers_queries = true, .gathers_keys = true};
  sizes.Nk2 = 6;
  sizes.bias = sizes.alibi = sizes.sinks = true;
  ExpectForward(sizes);
  ExpectForward({.Nq = 5, .Nk = 70, .listed = 9, .bias = true});
  ExpectForward({.Nq = 5, .Nk = 70, .params = {.weighting = Weighting::kRelu}, .row_weight = true});
}

TEST_P(FarStrides, AttendGrad) {
  for (Slots slots : {Slots::kNone, Slots::kInOrder, Slots::kGather, Slots::kListed}) {
    const bool is_listed = slots == Slots::kListed;
    ExpectBackward(
        {.B = 2,
         .H = 4,
         .Hkv = 2,
         .Nq = 5,
         .Nk = 70,
         .D = 12,
         .Dv = 8,
         .slots = slots,
         .terms = is_listed ? "bias slopes sinks" : "bias slopes sinks table labels relative"});
  }
}

TEST_P(FarStrides, Scan) {
  for (bool causal : {false, true}) {
    ScanSpec spec{.B = 2, .H = 4, .Hkv = 2, .Nq = 5, .Nk = 7, .D = 12, .Dv = 8};
    spec.params.causal = causal;
    if (causal) spec.decays = ScanSpec::Decays::kFeature;
    spec.beta = causal;
    ScanCase c(spec);
    ExpectSameBits(ScanArgs{.params = spec.params, .problems = {c.Problem()}}, 3);
    ScanGradProblem backward = c.GradProblem();
    backward.dlog_decay = backward.dbeta = {};  // dense by contract
    ExpectSameBits(ScanGradArgs{.params = spec.params, .problems = {backward}}, 3);
  }
}

TEST_P(FarStrides, MatMul) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const TestArray a = TestArray::Random(1, dtype, {2, 3, 5, 7});
    const TestArray b = TestArray::Random(2, dtype, {2, 3, 7, 18});
    const TestArray bias = TestArray::Random(3, dtype, {2, 1, 5, 18});
    const TestArray multiply = TestArray::Random(4, dtype, {1, 3, 5, 18});
    const TestArray out(dtype, {2, 3, 5, 18});
    ExpectSameBits(
        MatMulArgs{.problems = {{a.view(), b.view(), bias.view(), multiply.view(), out.view()}}},
        4);
  }
}

TEST_P(FarStrides, GatherAndScatter) {
  const TestArray x = TestArray::Random(1, DType::kF32, {2, 3, 9, 18});
  const TestArray index = TestArray::Random(2, DType::kI32, {2, 3, 9}, Memory::kDense, -1, 9);
  const TestArray gathered(DType::kF32, {2, 3, 9, 18}), scattered(DType::kF32, {2, 3, 9, 18});
  ExpectSameBits(GatherRowsArgs{.problems = {{x.view(), index.view(), gathered.view()}}}, 4);
  ExpectSameBits(ScatterRowsArgs{.problems = {{x.view(), index.view(), scattered.view()}}}, 4);
}

TEST_P(FarStrides, Merge) {
  std::vector<TestArray> arrays;
  const auto add = [&](const Shape& shape, bool is_input) {
    arrays.push_back(
        is_input ? TestArray::Random(static_cast<unsigned>(arrays.size()), DType::kF32, shape)
                 : TestArray(DType::kF32, shape));
    return arrays.back().view();
  };
  const Shape shape = {2, 3, 5, 18}, rows = {2, 3, 5};
  MergeProblem forward;
  for (int part = 0; part < 3; ++part) forward.parts.push_back({add(shape, true), add(rows, true)});
  forward.out = add(shape, false);
  forward.lse = add(rows, false);
  ExpectSameBits(MergeArgs{.problems = {forward}}, 3);
  MergeGradProblem backward = {forward, add(shape, true), add(rows, true), {}};
  for (int part = 0; part < 3; ++part) {
    backward.dparts.push_back({add(shape, false), add(rows, false)});
  }
  ExpectSameBits(MergeGradArgs{.problems = {backward}}, 3);
}

}  // namespace
}  // namespace attnd::testing
