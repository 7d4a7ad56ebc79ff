// Primitives on the CUDA device over arrays of which one dimension goes beyond 2^32 elements: the
// bits are those of the same problem in ordinary memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/device/launch.h"
#include "tests/cpu/attend_case.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"
#include "tests/cpu/scan_case.h"
#include "tests/cuda/on_host.h"
#include "tests/cuda/test_stream.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"
#ifndef ATTND_TESTS_ON_DEVICE
#include "tests/cuda/emulator/runtime.h"
#endif

// To the sanitizers such an array is 16 GiB of memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace attnd::testing {
namespace {

using Bytes = std::vector<std::byte>;

// f(first element of a run that is dense in memory, its bytes), the last axis fastest.
template <class F>
void ForEachRun(const View& view, const F& f) {
  attnd::Shape runs = view.shape;
  const int last = view.shape.rank - 1;
  const bool is_dense = view.stride[last] == 1;
  if (is_dense) runs.dims[last] = 1;
  ForEachIndex(runs, [&](const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (int i = 0; i <= last; ++i) at += index[static_cast<size_t>(i)] * view.stride[i];
    const int64_t size = SizeOf(view.dtype), elements = is_dense ? view.shape[last] : 1;
    f(view.As<std::byte>() + at * size, static_cast<size_t>(elements * size));
  });
}

// The elements of a view in device memory or in the host's. They are there when the test's stream
// has been waited for.
void Copy(const View& view, Bytes* elements, bool to_view) {
  std::byte* at = elements->data();
  ForEachRun(view, [&](std::byte* run, size_t bytes) {
    EXPECT_EQ(cudaMemcpyAsync(to_view ? run : at, to_view ? at : run, bytes, cudaMemcpyDefault,
                              TestStream()),
              cudaSuccess);
    at += bytes;
  });
}

std::vector<View> ViewsOf(const Launch& launch) {
  std::vector<View> views;
  ForEachView(launch, [&](const View& view) { views.push_back(view); });
  return views;
}

Bytes BytesFor(const View& view) {
  return Bytes(view.given() ? static_cast<size_t>(view.shape.size() * SizeOf(view.dtype)) : 0);
}

// A launch over device memory in which dimension `dimension` of view `far` spans 2^32 elements.
class FarLaunch {
 public:
  // `elements`: what the views of `near` hold at first, in their order.
  FarLaunch(const Launch& near, std::vector<Bytes>* elements, size_t far, int dimension)
      : launch_(near) {
    size_t n = 0;
    ForEachView(launch_, [&](const View& view) {
      // The launch is a copy of our own.
      if (view.given()) Move(&(*elements)[n], n == far ? dimension : -1, const_cast<View*>(&view));
      ++n;
    });
    EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  }
  ~FarLaunch() {
    for (void* data : memory_) EXPECT_EQ(cudaFreeAsync(data, TestStream()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  }
  FarLaunch(const FarLaunch&) = delete;
  FarLaunch& operator=(const FarLaunch&) = delete;
  const Launch& launch() const { return launch_; }

 private:
  void Move(Bytes* elements, int dimension, View* view) {
    if (dimension >= 0) {
      // More than the other dimensions span, and a whole number of vectors.
      view->stride[dimension] =
          RoundUp((int64_t{1} << 32) / (view->shape[dimension] - 1) + 3 * view->shape.size(), 16);
    }
    int64_t last = 0;
    for (int i = 0; i < view->shape.rank; ++i) {
      last += std::max<int64_t>(view->shape[i] - 1, 0) * view->stride[i];
    }
    void* data = nullptr;
    ASSERT_EQ(
        cudaMallocAsync(&data, static_cast<size_t>((last + 1) * SizeOf(view->dtype)), TestStream()),
        cudaSuccess);
    memory_.push_back(data);
    view->data = data;
    Copy(*view, elements, /*to_view=*/true);
  }

  Launch launch_;
  std::vector<void*> memory_;
};

class FarStridesCuda : public ::testing::Test {
 protected:
#ifndef ATTND_TESTS_ON_DEVICE
  FarStridesCuda() : before_(emu::machine.memory_bytes) {
    emu::machine.memory_bytes = int64_t{48} << 30;
  }
  ~FarStridesCuda() override { emu::machine.memory_bytes = before_; }
#endif

  // Of a launch over arrays in host memory, whose outputs hold NaN; those of `views` are moved,
  // each alone. `dimensions`: those that may have any stride.
  void ExpectSameBits(const Launch& near, int dimensions, Planned planned = Planned::kExactly) {
    auto& on_host = dynamic_cast<OnHost&>(CpuOf("cuda", 1));
    Device& device = on_host.inner();
    const std::vector<View> views = ViewsOf(near);
    std::vector<Bytes> before, after;
    for (const View& view : views) {
      before.push_back(BytesFor(view));
      if (view.given()) Copy(view, &before.back(), /*to_view=*/false);
    }
    ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
    RunOn(
        on_host, [&](Stream& stream) { return on_host.Run(stream, near); }, planned);
    for (const View& view : views) {
      after.push_back(BytesFor(view));
      if (view.given()) Copy(view, &after.back(), /*to_view=*/false);
    }
    ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
    int moved = 0;
    for (size_t n = 0; n < views.size(); ++n) {
      for (int d = 0; views[n].given() && d < std::min(dimensions, views[n].shape.rank); ++d) {
        if (views[n].shape[d] < 2 || views[n].stride[d] == 0) continue;
        SCOPED_TRACE(::testing::Message() << "array " << n << " " << ToString(views[n].shape)
                                          << ", dimension " << d << " is far");
        const FarLaunch far(near, &before, n, d);
        ASSERT_FALSE(HasFatalFailure());
        Stream stream(device, &device.memory());
        ASSERT_TRUE(device.Run(stream, far.launch()).ok());
        ASSERT_TRUE(stream.Wait().ok());
        Expect(far.launch(), after);
        ++moved;
      }
    }
    EXPECT_GT(moved, 0);
  }

 private:
  void Expect(const Launch& launch, const std::vector<Bytes>& wanted) {
    const std::vector<View> views = ViewsOf(launch);
    std::vector<Bytes> got(views.size());
    for (size_t n = 0; n < views.size(); ++n) {
      got[n] = BytesFor(views[n]);
      if (views[n].given()) Copy(views[n], &got[n], /*to_view=*/false);
    }
    ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
    for (size_t n = 0; n < views.size(); ++n) EXPECT_EQ(got[n], wanted[n]) << "array " << n;
  }

  int64_t before_ = 0;
};

TEST_F(FarStridesCuda, Attend) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TermsSizes sizes{.B = 2, .H = 2, .Hkv = 2, .Nq = 5, .Nk = 70, .D = 16, .Dv = 8};
    sizes.has_pattern = false;
    sizes.q = sizes.k = sizes.v = sizes.out = dtype;
    const TermsCase c(sizes, 1);
    ExpectSameBits(AttendArgs{.params = sizes.params, .problems = {c.Problem()}}, 3);
  }
  const TermsSizes listed{.B = 2, .H = 2, .Hkv = 2, .Nq = 5, .Nk = 70, .listed = 9, .bias = true};
  const TermsCase c(listed, 1);
  AttendProblem problem = c.Problem();
  CountBytes(&problem.seqs);
  ExpectSameBits(AttendArgs{.params = listed.params, .problems = {problem}}, 3, Planned::kAtLeast);
}

TEST_F(FarStridesCuda, AttendGrad) {
  for (const Slots slots : {Slots::kNone, Slots::kListed}) {
    const GradCase c({.B = 2,
                      .H = 2,
                      .Hkv = 2,
                      .Nq = 5,
                      .Nk = 70,
                      .D = 12,
                      .Dv = 8,
                      .slots = slots,
                      .terms = "bias"},
                     1);
    AttendGradProblem problem = c.Problem();
    problem.dterms = {};  // dense by contract
    CountBytes(&problem.forward.seqs);
    ExpectSameBits(AttendGradArgs{.params = c.Params(), .problems = {problem}}, 3,
                   slots == Slots::kNone ? Planned::kExactly : Planned::kAtLeast);
  }
}

TEST_F(FarStridesCuda, Scan) {
  ScanSpec spec{.B = 2, .H = 4, .Hkv = 2, .Nq = 5, .Nk = 7, .D = 12, .Dv = 8};
  spec.params.causal = true;
  spec.decays = ScanSpec::Decays::kFeature;
  spec.beta = true;
  ScanCase c(spec);
  ExpectSameBits(ScanArgs{.params = spec.params, .problems = {c.Problem()}}, 3);
  ScanGradProblem backward = c.GradProblem();
  backward.dlog_decay = backward.dbeta = {};  // dense by contract
  ExpectSameBits(ScanGradArgs{.params = spec.params, .problems = {backward}}, 3);
}

TEST_F(FarStridesCuda, MatMul) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TestArray a = TestArray::Random(1, dtype, {2, 5, 16});
    const TestArray b = TestArray::Random(2, dtype, {2, 16, 24});
    const TestArray bias = TestArray::Random(3, dtype, {2, 5, 24});
    const TestArray out(dtype, {2, 5, 24});
    ExpectSameBits(MatMulArgs{.problems = {{a.view(), b.view(), bias.view(), {}, out.view()}}}, 3);
  }
}

TEST_F(FarStridesCuda, GatherAndScatter) {
  const TestArray x = TestArray::Random(1, DType::kF32, {2, 3, 9, 20});
  const TestArray index = TestArray::Random(2, DType::kI32, {2, 3, 9}, Memory::kDense, -1, 9);
  const TestArray gathered(DType::kF32, {2, 3, 9, 20}), scattered(DType::kF32, {2, 3, 9, 20});
  ExpectSameBits(GatherRowsArgs{.problems = {{x.view(), index.view(), gathered.view()}}}, 3);
  ExpectSameBits(ScatterRowsArgs{.problems = {{x.view(), index.view(), scattered.view()}}}, 3);
}

// An axis that is not dense is summed in another order.
TEST_F(FarStridesCuda, AlongAnAxis) {
  for (const int axis : {1, 2}) {
    const TestArray x = TestArray::Random(1, DType::kF32, {2, 5, 20});
    const TestArray softmax(DType::kF32, {2, 5, 20}), sums(DType::kF32, {2, 5, 20});
    ExpectSameBits(SoftmaxArgs{.axis = axis, .problems = {{x.view(), softmax.view()}}}, 2);
    ExpectSameBits(CumulativeArgs{.axis = axis, .problems = {{x.view(), sums.view(), {}}}}, 2);
  }
}

}  // namespace
}  // namespace attnd::testing

#endif
