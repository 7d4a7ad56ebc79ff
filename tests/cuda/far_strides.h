// Launches of the CUDA device over arrays of which one dimension goes beyond 2^32 elements: the
// bits are those of the same problem in ordinary memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/device/launch.h"
#include "tests/cuda/on_host.h"
#include "tests/cuda/test_stream.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"
#ifndef ATTND_TESTS_ON_DEVICE
#include "tests/cuda/emulator/runtime.h"
#endif

namespace attnd::testing {
namespace far_strides_internal {

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
inline void Copy(const View& view, Bytes* elements, bool to_view) {
  std::byte* at = elements->data();
  ForEachRun(view, [&](std::byte* run, size_t bytes) {
    EXPECT_EQ(cudaMemcpyAsync(to_view ? run : at, to_view ? at : run, bytes, cudaMemcpyDefault,
                              TestStream()),
              cudaSuccess);
    at += bytes;
  });
}

inline std::vector<View> ViewsOf(const Launch& launch) {
  std::vector<View> views;
  ForEachView(launch, [&](const View& view) { views.push_back(view); });
  return views;
}

// What views hold, in their order; nothing of those not given().
inline std::vector<Bytes> ElementsOf(const std::vector<View>& views) {
  std::vector<Bytes> elements(views.size());
  for (size_t n = 0; n < views.size(); ++n) {
    if (!views[n].given()) continue;
    elements[n].resize(static_cast<size_t>(views[n].bytes()));
    Copy(views[n], &elements[n], /*to_view=*/false);
  }
  EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  return elements;
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

}  // namespace far_strides_internal

class FarStridesCuda : public ::testing::Test {
 protected:
#ifndef ATTND_TESTS_ON_DEVICE
  FarStridesCuda() : before_(emu::machine.memory_bytes) {
    emu::machine.memory_bytes = int64_t{48} << 30;
  }
  ~FarStridesCuda() override { emu::machine.memory_bytes = before_; }
#endif

  // Of a launch over arrays in host memory, whose outputs hold NaN. Each of its arrays is moved
  // alone, in each of the first `dimensions` (on a device in one), which may have any stride; those
  // of `dense`, by their number, have none that may.
  void ExpectSameBits(const Launch& near, int dimensions, const std::set<size_t>& dense = {},
                      Planned planned = Planned::kExactly) {
    using namespace far_strides_internal;
    auto& on_host = dynamic_cast<OnHost&>(CpuOf("cuda", 1));
    Device& device = on_host.inner();
    const std::vector<View> views = ViewsOf(near);
    std::vector<Bytes> before = ElementsOf(views);
    RunOn(
        on_host, [&](Stream& stream) { return on_host.Run(stream, near); }, planned);
    const std::vector<Bytes> after = ElementsOf(views);
    int moved = 0;
    for (size_t n = 0; n < views.size(); ++n) {
      const int count = dense.contains(n) ? 0 : std::min(dimensions, views[n].shape.rank);
      for (int d = 0; d < count; ++d) {
        if (views[n].shape[d] < 2 || views[n].stride[d] == 0) continue;
        SCOPED_TRACE(::testing::Message() << "array " << n << " " << ToString(views[n].shape)
                                          << ", dimension " << d << " is far");
        const FarLaunch far(near, &before, n, d);
        ASSERT_FALSE(HasFatalFailure());
        Stream stream(device, &device.memory());
        ASSERT_TRUE(device.Run(stream, far.launch()).ok());
        ASSERT_TRUE(stream.Wait().ok());
        const std::vector<Bytes> got = ElementsOf(ViewsOf(far.launch()));
        for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], after[i]) << "array " << i;
        ++moved;
#ifdef ATTND_TESTS_ON_DEVICE
        break;  // it takes 8 to 17 GiB, a thousand times in all tests
#endif
      }
    }
    EXPECT_GT(moved, 0);
  }

 private:
  int64_t before_ = 0;
};

}  // namespace attnd::testing
