// gather moves rows, one memcpy each.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rows/row_walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows/gather_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/rows/divide-inl.h"
#include "kernels/cpu/simd/strided-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

constexpr int64_t kChunk = 256;  // floats of a row at a time, on the stack

// One row of D elements that is not a plain copy.
void ConvertRow(const View& x, const char* from, int64_t from_stride, const View& out, char* to,
                int64_t to_stride, int64_t D) {
  if (x.dtype == DType::kI32) {
    for (int64_t d = 0; d < D; ++d) {
      std::memcpy(to + d * to_stride * 4, from + d * from_stride * 4, 4);
    }
    return;
  }
  float row[kChunk];
  for (int64_t d = 0; d < D; d += kChunk) {
    const int64_t n = std::min(kChunk, D - d);
    ReadFloats(x.dtype, from + d * from_stride * SizeOf(x.dtype), from_stride, n, row);
    WriteFloats(out.dtype, row, to_stride, n, to + d * to_stride * SizeOf(out.dtype));
  }
}

// Rows [begin, end) of one [M, D] matrix, each divided. The pointers are those of the matrices and
// of the lists.
void GatherDivided(const GatherRowsProblem& p, const char* x, const int32_t* index,
                   const float* divisor, char* out, int64_t begin, int64_t end) {
  const int row = p.out.shape.rank - 2;
  const int64_t D = p.out.shape[row + 1];
  const int64_t x_size = SizeOf(p.x.dtype), out_size = SizeOf(p.out.dtype);
  const bool is_dense = p.x.dtype == DType::kF32 && p.out.dtype == DType::kF32 &&
                        p.x.stride[row + 1] == 1 && p.out.stride[row + 1] == 1;
  float values[kChunk];
  for (int64_t m = begin; m < end; ++m) {
    const int64_t n = index[m * p.index.stride[row]];
    const char* from = x + n * p.x.stride[row] * x_size;
    char* to = out + m * p.out.stride[row] * out_size;
    if (m + kAhead < end) {
      const int64_t ahead = std::max(index[(m + kAhead) * p.index.stride[row]], 0);
      FetchRow(x + ahead * p.x.stride[row] * x_size, D * x_size);
    }
    const float by = n < 0 ? 0 : DivisorOf(p.divisor, divisor, n);
    if (is_dense) {
      DivideRow(reinterpret_cast<const float*>(from), D, by, reinterpret_cast<float*>(to));
      continue;
    }
    for (int64_t first = 0; first < D; first += kChunk) {
      const int64_t count = std::min(kChunk, D - first);
      if (by != 0) {
        ReadFloats(p.x.dtype, from + first * p.x.stride[row + 1] * x_size, p.x.stride[row + 1],
                   count, values);
      }
      DivideRow(values, count, by, values);
      WriteFloats(p.out.dtype, values, p.out.stride[row + 1], count,
                  to + first * p.out.stride[row + 1] * out_size);
    }
  }
}

// Rows [begin, end) of one [M, D] matrix. The pointers are those of the matrices and of the list.
void Gather(const GatherRowsProblem& p, const char* x, const int32_t* index, char* out,
            int64_t begin, int64_t end) {
  const int row = p.out.shape.rank - 2;
  const int64_t D = p.out.shape[row + 1], x_size = SizeOf(p.x.dtype);
  const int64_t out_size = SizeOf(p.out.dtype), step = p.index.stride[row];
  const int64_t x_pitch = p.x.stride[row] * x_size, out_pitch = p.out.stride[row] * out_size;
  const int64_t x_stride = p.x.stride[row + 1], out_stride = p.out.stride[row + 1];
  const bool dense = D == 1 || (x_stride == 1 && out_stride == 1);
  const bool copies = dense && p.x.dtype == p.out.dtype;
  const int64_t bytes = D * out_size;
  for (int64_t m = begin; m < end; ++m) {
    const int64_t n = index[m * step];
    char* to = out + m * out_pitch;
    const char* from = x + n * x_pitch;
    if (m + kAhead < end) {
      FetchRow(x + std::max(index[(m + kAhead) * step], 0) * x_pitch, D * x_size);
    }
    if (n >= 0 && copies) {
      if (bytes == 4) {
        std::memcpy(to, from, 4);
      } else {
        std::memcpy(to, from, bytes);
      }
    } else if (n >= 0) {
      ConvertRow(p.x, from, x_stride, p.out, to, out_stride, D);
    } else if (dense) {
      std::memset(to, 0, bytes);
    } else {
      for (int64_t d = 0; d < D; ++d) std::memset(to + d * out_stride * out_size, 0, out_size);
    }
  }
}

// The same for elements x[index[m], columns[w]].
void GatherPairs(const GatherRowsProblem& p, const char* x, const int32_t* index,
                 const int32_t* columns, char* out, int64_t begin, int64_t end) {
  const int row = p.out.shape.rank - 2;
  const int64_t W = p.out.shape[row + 1], x_size = SizeOf(p.x.dtype);
  const int64_t out_size = SizeOf(p.out.dtype), step = p.columns.stride[row];
  for (int64_t m = begin; m < end; ++m) {
    const int64_t n = index[m * p.index.stride[row]];
    const char* from = x + n * p.x.stride[row] * x_size;
    char* to = out + m * p.out.stride[row] * out_size;
    float values[kChunk];
    for (int64_t first = 0; first < W; first += kChunk) {
      const int64_t count = std::min(kChunk, W - first);
      for (int64_t w = 0; w < count; ++w) {
        const int64_t column = columns[(first + w) * step];
        values[w] = 0;
        if (n < 0 || column < 0) continue;
        const char* at = from + column * p.x.stride[row + 1] * x_size;
        if (p.x.dtype == DType::kF32) {
          std::memcpy(&values[w], at, sizeof(float));
        } else {
          ReadFloats(p.x.dtype, at, 1, 1, &values[w]);
        }
      }
      WriteFloats(p.out.dtype, values, p.out.stride[row + 1], count,
                  to + first * p.out.stride[row + 1] * out_size);
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const GatherRowsArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems items;
  double bytes = 0;
  for (const GatherRowsProblem& p : args.problems) {
    items.Add(Rows(p.out), RowsPerItem(p.out));
    bytes += 2.0 * static_cast<double>(p.out.bytes() + 8 * Rows(p.out));
    if (p.columns.given()) bytes += kPairBytes * static_cast<double>(p.out.shape.size());
  }
  const double serial = SecondsToMove(cpu, bytes);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run =
      Choose(cpu.isa, HWY_CHOOSE_SSE4(Gather), HWY_CHOOSE_AVX2(Gather), HWY_CHOOSE_AVX3(Gather));
  auto* run_pairs = Choose(cpu.isa, HWY_CHOOSE_SSE4(GatherPairs), HWY_CHOOSE_AVX2(GatherPairs),
                           HWY_CHOOSE_AVX3(GatherPairs));
  auto* run_divided = Choose(cpu.isa, HWY_CHOOSE_SSE4(GatherDivided),
                             HWY_CHOOSE_AVX2(GatherDivided), HWY_CHOOSE_AVX3(GatherDivided));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    const GatherRowsProblem& p = args.problems[item.problem];
    const int rank = p.out.shape.rank - 2;
    ForEachMatrix(p.out, item, [&](const RowIndex& lead, int64_t begin, int64_t end) {
      const auto* index = reinterpret_cast<const int32_t*>(At(p.index, rank, lead));
      if (p.columns.given()) {
        const auto* columns = reinterpret_cast<const int32_t*>(At(p.columns, rank, lead));
        run_pairs(p, At(p.x, rank, lead), index, columns, At(p.out, rank, lead), begin, end);
      } else if (p.divisor.given()) {
        run_divided(p, At(p.x, rank, lead), index, DivisorsAt(p.divisor, rank, lead),
                    At(p.out, rank, lead), begin, end);
      } else {
        run(p, At(p.x, rank, lead), index, At(p.out, rank, lead), begin, end);
      }
    });
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
