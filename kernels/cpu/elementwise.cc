#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// n elements `stride` apart, as float32.
void ReadRow(DType dtype, const char* from, int64_t stride, int64_t n, float* to) {
  if (stride == 1 && dtype != DType::kI32) return Widen(dtype, from, n, to);
  for (int64_t i = 0; i < n; ++i) {
    const char* at = from + i * stride * SizeOf(dtype);
    if (dtype == DType::kI32) {
      to[i] = static_cast<float>(*reinterpret_cast<const int32_t*>(at));
    } else {
      Widen(dtype, at, 1, to + i);
    }
  }
}

void ElementRow(const ElementwiseArgs& args, const ElementwiseProblem& p, const char* a,
                const char* b, char* out, int64_t n) {
  constexpr int64_t kStep = 256;
  HWY_ALIGN float left[kStep];
  HWY_ALIGN float right[kStep];
  const int last = p.out.shape.rank - 1;
  const auto stride = [&](const View& view) {
    return view.shape[last] == 1 ? 0 : view.stride[last];
  };
  for (int64_t i = 0; i < n; i += kStep) {
    const int64_t count = std::min(kStep, n - i);
    ReadRow(p.a.dtype, a + i * stride(p.a) * SizeOf(p.a.dtype), stride(p.a), count, left);
    if (args.op == ElementOp::kAdd) {
      ReadRow(p.b.dtype, b + i * stride(p.b) * SizeOf(p.b.dtype), stride(p.b), count, right);
      for (int64_t j = 0; j < count; ++j) left[j] += right[j];
    }
    const int64_t step = p.out.stride[last] * SizeOf(p.out.dtype);
    if (p.out.stride[last] == 1) {
      Narrow(p.out.dtype, left, count, out + i * step);
    } else {
      for (int64_t j = 0; j < count; ++j) Narrow(p.out.dtype, left + j, 1, out + (i + j) * step);
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// Row `row` of `shape` (all axes but the last) in a view that broadcasts to it.
char* RowOf(const View& view, const Shape& shape, int64_t row) {
  if (!view.given()) return nullptr;
  int64_t offset = 0;
  for (int i = shape.rank - 2; i >= 0; --i) {
    if (view.shape[i] != 1) offset += row % shape[i] * view.stride[i];
    row /= shape[i];
  }
  return view.As<char>() + offset * SizeOf(view.dtype);
}

}  // namespace

absl::Status CpuElementwise(CpuBackend& backend, Stream& stream, const ElementwiseArgs& args) {
  if (args.op != ElementOp::kAdd && args.op != ElementOp::kCopy) {
    return absl::UnimplementedError("elementwise: is not built yet");
  }
  const Cpu& cpu = backend.cpu();
  RowItems items;
  double bytes = 0;
  for (const ElementwiseProblem& p : args.problems) {
    const int last = p.out.shape.rank - 1;
    const int64_t n = std::max<int64_t>(p.out.shape[last], 1);
    items.Add(p.out.shape.size() / n, (64 << 10) / (n * SizeOf(p.out.dtype)));
    bytes += 3.0 * static_cast<double>(p.out.bytes());
  }
  const double serial = bytes / (cpu.bytes_per_second / cpu.threads);
  if (stream.is_dry()) {
    stream.work().seconds += cpu.ParallelSeconds(serial, items.count());
    return absl::OkStatus();
  }
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(ElementRow), HWY_CHOOSE_AVX2(ElementRow),
                     HWY_CHOOSE_AVX3(ElementRow));
  cpu.pool->ParallelFor(items.count(), cpu.Parallel(serial), [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    const ElementwiseProblem& p = args.problems[item.problem];
    const Shape& s = p.out.shape;
    for (int64_t row = item.begin; row < item.end; ++row) {
      run(args, p, RowOf(p.a, s, row), RowOf(p.b, s, row), RowOf(p.out, s, row), s[s.rank - 1]);
    }
  });
  return absl::OkStatus();
}

}  // namespace attnd
#endif
