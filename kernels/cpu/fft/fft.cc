// Only the part of x that is even under (a, b) -> (-a, -b) has a real transform, and it is all that
// a real part shows. With s = that part, half of the work of a real transform remains:
//  1. rows 0..N/2 of s (the others are their mirror images), two real rows in one complex
//     transform;
//  2. columns 0..M/2 of the result S, which are Hermitian (S[-n, m] = conj S[n, m]), two of their
//     real transforms in one complex one. out[-n, -m] = out[n, m] gives the rest.
// Lanes are rows in 1 and columns in 2. Between them S lies in blocks of as many columns as an item
// of 2 takes.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/fft/fft_tables.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fft/fft.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/fft/fft_columns-inl.h"
#include "kernels/cpu/simd/strided-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

constexpr int64_t kWide = 2 * fft::kLanes;  // rows or columns of one item
constexpr int64_t kLongRow = 1024;          // elements: some microseconds

int64_t Wide() { return kWide; }

// Rows n0..n0 + kWide of S, of all columns 0..M/2. spectrum: row n0 of the first block of columns;
// blocks are `block_pitch` floats apart, each row of one has kWide real parts and kWide imaginary
// parts. work: 2 M kWide + M floats and those of the tables.
void RowBlock(const FftProblem& p, const FftTables& tables, const char* x, int64_t n0,
              float* spectrum, int64_t block_pitch, float* work) {
  using namespace fft;
  const int row = p.x.shape.rank - 2;
  const int64_t N = p.x.shape[row], M = p.x.shape[row + 1], size = SizeOf(p.x.dtype);
  float* columns = work;                 // [M] elements
  float* rows = columns + M * kElement;  // [kWide][M]
  float* mirrored = rows + M * kWide;    // [M]
  const auto read = [&](int64_t n, float* to) {
    // A half of `even part`, and one of taking two rows apart below.
    ReadFloats(p.x.dtype, x + n * p.x.stride[row] * size, p.x.stride[row + 1], M, to, 0.25f);
  };
  for (int64_t r = 0; r < kWide; ++r) {
    if ((r == 0 || M >= kLongRow) && CheckPoint()) return;
    const int64_t n = n0 + r;
    float* even = rows + r * M;
    if (n > N / 2) {
      std::fill(even, even + M, 0.0f);
      continue;
    }
    read(n, even);
    read(n == 0 ? 0 : N - n, mirrored);
    even[0] += mirrored[0];
    for (int64_t b = 1; b < M; ++b) even[b] += mirrored[M - b];
  }
  Transpose(rows, M, kLanes, M, columns, kElement);
  Transpose(rows + kLanes * M, M, kLanes, M, columns + kLanes, kElement);
  Stored stored(columns);
  Run(tables, stored, rows);

  for (int64_t m0 = 0; m0 <= M / 2; m0 += kWide, spectrum += block_pitch) {
    if (m0 % (64 * kWide) == 0 && CheckPoint()) return;
    HWY_ALIGN float taken[kWide * 2 * kWide];  // [column][real and imaginary parts of both rows]
    for (int64_t i = 0; i < kWide; ++i) {
      float* at = taken + i * 2 * kWide;
      const int64_t m = m0 + i;
      if (m > M / 2) {
        std::fill(at, at + 2 * kWide, 0.0f);
        continue;
      }
      const C z = Load(columns + m * kElement), y = Load(columns + (m == 0 ? 0 : M - m) * kElement);
      Store({hn::Add(z.re, y.re), hn::Sub(z.im, y.im)}, at);
      Store({hn::Add(z.im, y.im), hn::Sub(y.re, z.re)}, at + kElement);
    }
    for (int half = 0; half < 2; ++half) {
      float* to = spectrum + half * kLanes * 2 * kWide;
      const float* from = taken + half * kElement;
      Transpose(from, 2 * kWide, kWide, kLanes, to, 2 * kWide);
      Transpose(from + kLanes, 2 * kWide, kWide, kLanes, to + kWide, 2 * kWide);
    }
  }
}

// Columns m0..m0 + kWide: column m0 + l is the real part of lane l, m0 + kLanes + l the imaginary.
class SpectrumColumns final : public fft::Columns {
 public:
  SpectrumColumns(const FftProblem& p, const float* spectrum, char* out, int64_t m0)
      : p_(p),
        row_(p.out.shape.rank - 2),
        N_(p.out.shape[row_]),
        M_(p.out.shape[row_ + 1]),
        m0_(m0),
        spectrum_(spectrum),
        out_(out) {
    const int64_t first = std::max<int64_t>(m0, 1), last = std::min(m0 + kWide - 1, (M_ - 1) / 2);
    columns_ = std::min(kWide, M_ / 2 + 1 - m0);
    mirror_skips_ = m0 + kWide - 1 - last;
    mirror_columns_ = std::max<int64_t>(last - first + 1, 0);
  }

  void Read(int64_t first, int64_t step, int64_t count, float* to) override {
    using namespace fft;
    const D d;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = first + i * step;
      const bool mirrored = n > N_ / 2;
      const float* at = spectrum_ + (mirrored ? N_ - n : n) * 2 * kWide;
      const C a = {hn::Load(d, at), hn::Load(d, at + kWide)};
      const C b = {hn::Load(d, at + kLanes), hn::Load(d, at + kWide + kLanes)};
      const V re = mirrored ? hn::Add(a.re, b.im) : hn::Sub(a.re, b.im);
      const V im = mirrored ? hn::Sub(b.re, a.im) : hn::Add(b.re, a.im);
      Store({re, im}, to + i * kElement);
    }
  }

  void Write(int64_t first, int64_t step, int64_t count, const float* from) override {
    using namespace fft;
    const D d;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = first + i * step;
      const C x = Load(from + i * kElement);
      WriteRow(k, m0_, from + i * kElement, columns_);
      HWY_ALIGN float mirror[kWide];
      Store({hn::Reverse(d, x.im), hn::Reverse(d, x.re)}, mirror);
      WriteRow(k == 0 ? 0 : N_ - k, M_ - m0_ - kWide + 1 + mirror_skips_, mirror + mirror_skips_,
               mirror_columns_);
    }
  }

 private:
  void WriteRow(int64_t n, int64_t m, const float* from, int64_t count) {
    const auto& stride = p_.out.stride;
    char* to = out_ + (n * stride[row_] + m * stride[row_ + 1]) * SizeOf(p_.out.dtype);
    if (count == kWide && p_.out.dtype == DType::kF32 && stride[row_ + 1] == 1) {
      const fft::D d;
      float* floats = reinterpret_cast<float*>(to);
      hn::StoreU(hn::LoadU(d, from), d, floats);
      hn::StoreU(hn::LoadU(d, from + fft::kLanes), d, floats + fft::kLanes);
      return;
    }
    WriteFloats(p_.out.dtype, from, stride[row_ + 1], count, to);
  }

  const FftProblem& p_;
  const int row_;
  const int64_t N_, M_, m0_;
  const float* const spectrum_;
  char* const out_;
  // Column m goes to M - m as well, but for 0 and M/2.
  int64_t columns_, mirror_skips_, mirror_columns_;
};

void ColumnBlock(const FftProblem& p, const FftTables& tables, const float* spectrum, char* out,
                 int64_t m0, float* work) {
  SpectrumColumns columns(p, spectrum, out, m0);
  fft::Run(tables, columns, work);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// One matrix of every problem and where its S is.
struct Task {
  const FftProblem& problem;
  int64_t N, M;
  int64_t row_blocks, column_blocks;
  int64_t matrices;
  int64_t offset;  // of the first S, in floats
  int64_t block_pitch, pitch;

  Task(const FftProblem& p, int64_t wide, int64_t first) : problem(p), offset(first) {
    const int row = p.x.shape.rank - 2;
    N = p.x.shape[row];
    M = p.x.shape[row + 1];
    row_blocks = CeilDiv(N / 2 + 1, wide);
    column_blocks = CeilDiv(M / 2 + 1, wide);
    matrices = N == 0 || M == 0 ? 0 : p.x.shape.size() / (N * M);
    block_pitch = row_blocks * wide * 2 * wide;
    pitch = column_blocks * block_pitch;
  }

  // Floats that one thread works in.
  int64_t work(int64_t wide) const {
    const int64_t rows = std::max(M * wide + M, WorkOf(SizesOf(M)) * wide);
    return RoundUp(std::max(M * wide + rows, WorkOf(SizesOf(N)) * wide), 16);
  }

  char* Matrix(const View& view, int64_t number) const {
    int64_t offset = 0;
    for (int i = view.shape.rank - 3; i >= 0; --i) {
      offset += number % view.shape[i] * view.stride[i];
      number /= view.shape[i];
    }
    return view.As<char>() + offset * SizeOf(view.dtype);
  }
};

// Seconds of one thread for `columns` complex transforms of length n: measured.
double Seconds(const Cpu& cpu, double columns, int64_t n) {
  // Of an element and a doubling of the length, at 5 operations each.
  constexpr double kShareOfPeak = 0.1;
  const FftSizes sizes = SizesOf(n);
  const double length = static_cast<double>(sizes.smooth) * (sizes.is_convolution() ? 2 : 1);
  return columns * 5 * length * (std::log2(length) + 4) / (kShareOfPeak * cpu.thread_flops);
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const FftArgs& args) {
  const Cpu& cpu = device.cpu();
  const int64_t wide =
      Choose(cpu.isa, HWY_CHOOSE_SSE4(Wide), HWY_CHOOSE_AVX2(Wide), HWY_CHOOSE_AVX3(Wide))();
  std::vector<Task> tasks;
  RowItems row_items, column_items;
  int64_t floats = 0, work_of_thread = 0;
  double row_serial = 0, column_serial = 0;
  for (const FftProblem& p : args.problems) {
    const Task& task = tasks.emplace_back(p, wide, floats);
    row_items.Add(task.matrices * task.row_blocks, 1);
    column_items.Add(task.matrices * task.column_blocks, 1);
    if (task.matrices == 0) continue;
    floats += task.matrices * task.pitch;
    work_of_thread = std::max(work_of_thread, task.work(wide));
    const auto half = static_cast<double>(task.matrices * wide / 2);
    row_serial += Seconds(cpu, half * static_cast<double>(task.row_blocks), task.M);
    column_serial += Seconds(cpu, half * static_cast<double>(task.column_blocks), task.N);
  }
  const std::shared_ptr<Buffer> scratch =
      Take(stream, (floats + cpu.threads * work_of_thread) * static_cast<int64_t>(sizeof(float)));
  if (scratch == nullptr) return NoMemory(stream);
  if (Predicted(stream, cpu.ParallelSeconds(row_serial, row_items.count()) +
                            cpu.ParallelSeconds(column_serial, column_items.count()))) {
    return DeviceStatus();
  }
  struct Tables {
    std::shared_ptr<const FftTables> of_rows, of_columns;
  };
  std::vector<Tables> all_tables;
  for (const Task& task : tasks) {
    all_tables.push_back(task.matrices == 0 ? Tables()
                                            : Tables{FftTablesOf(task.M), FftTablesOf(task.N)});
    if (stream.stopped()) return DeviceStatus();  // tables may be missing
  }
  auto* spectra = static_cast<float*>(scratch->data());
  const auto work = [&](int thread) { return spectra + floats + thread * work_of_thread; };

  auto* rows = Choose(cpu.isa, HWY_CHOOSE_SSE4(RowBlock), HWY_CHOOSE_AVX2(RowBlock),
                      HWY_CHOOSE_AVX3(RowBlock));
  cpu.ForEach(stream, row_items.count(), row_serial, [&](int64_t i, int thread) {
    const RowItems::Item item = row_items[i];
    const Task& task = tasks[item.problem];
    const int64_t matrix = item.begin / task.row_blocks;
    const int64_t n0 = item.begin % task.row_blocks * wide;
    rows(task.problem, *all_tables[item.problem].of_rows, task.Matrix(task.problem.x, matrix), n0,
         spectra + task.offset + matrix * task.pitch + n0 * 2 * wide, task.block_pitch,
         work(thread));
  });
  auto* columns = Choose(cpu.isa, HWY_CHOOSE_SSE4(ColumnBlock), HWY_CHOOSE_AVX2(ColumnBlock),
                         HWY_CHOOSE_AVX3(ColumnBlock));
  cpu.ForEach(stream, column_items.count(), column_serial, [&](int64_t i, int thread) {
    const RowItems::Item item = column_items[i];
    const Task& task = tasks[item.problem];
    const int64_t matrix = item.begin / task.column_blocks;
    const int64_t block = item.begin % task.column_blocks;
    columns(task.problem, *all_tables[item.problem].of_columns,
            spectra + task.offset + matrix * task.pitch + block * task.block_pitch,
            task.Matrix(task.problem.out, matrix), block * wide, work(thread));
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
