// Fft on a CUDA device: what the library does not compute takes tables, then a launch a pass over
// all problems: those of the rows, then those of the columns.
#include "kernels/cuda/fft/fft.cuh"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fft/fft_library.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

FftMatrices MatricesOf(const View& view) {
  FftMatrices m;
  const int rank = view.shape.rank;
  m.data = view.data;
  m.dtype = view.dtype;
  m.row = view.stride[rank - 2];
  m.column = view.stride[rank - 1];
  m.leading = rank - 2;
  for (int i = 0; i < m.leading; ++i) {
    m.dims[i] = view.shape[i];
    m.strides[i] = view.stride[i];
  }
  return m;
}

// A length of the list and its tables in scratch memory, as offsets.
struct Tables {
  FftLength length;
  int64_t roots = 0, chirp = 0, spectrum = 0, work = 0;
};

struct Task {
  const FftProblem* problem;
  int64_t N, M, matrices;
  size_t rows, columns;  // tables of M and of N
  int64_t row_pairs, column_pairs;
  int64_t transformed = 0, work = 0;  // offsets: Z, and arrays between passes
  int64_t work_size = 0;
};

// One kernel launch over all problems.
struct PassList {
  ProblemList<FftPass> list;
  size_t shared_bytes = 0;
  double flops = 0, bytes = 0;
};

class FftLaunch {
 public:
  FftLaunch(const FftArgs& args, const Cuda& cuda) : cuda_(cuda) {
    for (const FftProblem& p : args.problems) AddTask(p);
    for (Task& task : tasks_) {
      const int64_t of_rows = task.matrices * task.row_pairs;
      const int64_t of_columns = task.matrices * task.column_pairs;
      task.work_size = std::max(WorkOf(lengths_[task.rows].length, of_rows),
                                WorkOf(lengths_[task.columns].length, of_columns));
      task.transformed = Place(of_rows * task.M);
      task.work = Place(2 * task.work_size);
    }
  }

  int64_t bytes() const { return elements_ * static_cast<int64_t>(sizeof(FftComplex)); }
  bool empty() const { return tasks_.empty(); }

  // `memory`: bytes() of them; null: a dry run.
  DeviceStatus Run(CudaDevice& device, Stream& stream, FftComplex* memory) {
    memory_ = memory;
    AddPasses();
    const LaunchShape tables = {.threads = kFftThreads,
                                .seconds = cuda_.Seconds(200 * table_elements_, 0)};
    if (DeviceStatus status = LaunchOver(device, stream, tables, FftTableKernel, tables_);
        !status.ok()) {
      return status;
    }
    for (std::vector<PassList>* passes : {&spectra_, &rows_, &columns_}) {
      for (PassList& pass : *passes) {
        const LaunchShape shape = {.threads = kFftThreads,
                                   .shared_bytes = pass.shared_bytes,
                                   .seconds = cuda_.Seconds(pass.flops, pass.bytes)};
        if (DeviceStatus status = LaunchOver(device, stream, shape, FftKernel, pass.list);
            !status.ok()) {
          return status;
        }
      }
    }
    return {};
  }

 private:
  int64_t Place(int64_t elements) {
    const int64_t at = elements_;
    elements_ += (elements + 15) / 16 * 16;
    return at;
  }
  FftComplex* At(int64_t offset) const { return memory_ == nullptr ? nullptr : memory_ + offset; }

  // Elements of one of two arrays between passes.
  static int64_t WorkOf(const FftLength& length, int64_t transforms) {
    return length.passes() == 1 ? 0 : transforms * length.smooth;
  }

  size_t TablesOf(int64_t n) {
    for (size_t i = 0; i < lengths_.size(); ++i) {
      if (lengths_[i].length.n == n) return i;
    }
    Tables tables{.length = FftLength(n)};
    tables.roots = Place(tables.length.smooth);
    if (tables.length.is_convolution()) {
      tables.chirp = Place(n);
      tables.spectrum = Place(tables.length.smooth);
      tables.work = Place(2 * tables.length.smooth);
    }
    lengths_.push_back(tables);
    return lengths_.size() - 1;
  }

  void AddTask(const FftProblem& p) {
    const int rank = p.x.shape.rank;
    const int64_t N = p.x.shape[rank - 2], M = p.x.shape[rank - 1];
    if (p.x.shape.size() == 0) return;
    tasks_.push_back({.problem = &p,
                      .N = N,
                      .M = M,
                      .matrices = p.x.shape.size() / (N * M),
                      .rows = TablesOf(M),
                      .columns = TablesOf(N),
                      .row_pairs = (N / 2 + 2) / 2,
                      .column_pairs = (M / 2 + 2) / 2});
  }

  void AddPasses() {
    for (const Tables& tables : lengths_) {
      AddTable({.n = tables.length.smooth, .is_chirp = false, .to = At(tables.roots)});
      if (!tables.length.is_convolution()) continue;
      AddTable({.n = tables.length.n, .is_chirp = true, .to = At(tables.chirp)});
      FftPass pass{.transforms = 1, .from = FftFrom::kChirp, .to = FftTo::kSpectrum};
      pass.out = At(tables.spectrum);
      AddLevels(tables, pass, tables.work, tables.length.smooth, spectra_);
    }
    for (const Task& task : tasks_) {
      FftPass rows{.transforms = task.matrices * task.row_pairs, .from = FftFrom::kRows};
      rows.N = task.N;
      rows.M = task.M;
      rows.of_matrix = task.row_pairs;
      rows.real = MatricesOf(task.problem->x);
      rows.out = At(task.transformed);
      AddTransform(task, lengths_[task.rows], rows, rows_);
      FftPass columns{.transforms = task.matrices * task.column_pairs,
                      .from = FftFrom::kColumns,
                      .to = FftTo::kColumns};
      columns.N = task.N;
      columns.M = task.M;
      columns.of_matrix = task.column_pairs;
      columns.real = MatricesOf(task.problem->out);
      columns.in = At(task.transformed);
      AddTransform(task, lengths_[task.columns], columns, columns_);
    }
  }

  void AddTable(const FftTable& table) {
    tables_.Add(table, DivideUp(table.n, kTableElements));
    table_elements_ += static_cast<double>(table.n);
  }

  // The passes of a transform as wide as `whole`: from where and to where.
  void AddTransform(const Task& task, const Tables& tables, const FftPass& whole,
                    std::vector<PassList>& lists) {
    if (!tables.length.is_convolution()) {
      AddLevels(tables, whole, task.work, task.work_size, lists);
      return;
    }
    FftPass there = whole, back = whole;
    there.to = FftTo::kProduct;
    there.chirps_in = true;
    back.from = FftFrom::kArray;
    back.chirps_out = true;
    // The product lies in the array that the first of the passes back reads.
    const int count = tables.length.count;
    there.out = At(task.work + (count + 1) % 2 * task.work_size);
    back.in = there.out;
    AddLevels(tables, there, task.work, task.work_size, lists);
    AddLevels(tables, back, task.work, task.work_size, lists, count);
  }

  // Pass i of a transform goes to array i % 2 of `work`, the last one to where `whole` does.
  void AddLevels(const Tables& tables, const FftPass& whole, int64_t work, int64_t size,
                 std::vector<PassList>& lists, int first = 0) {
    const FftLength& length = tables.length;
    int64_t stride = 1;
    for (int i = 0; i < length.count; ++i) {
      FftPass pass = whole;
      pass.n = length.smooth;
      pass.given = length.n;
      pass.level = length.levels[i];
      pass.stride = stride;
      pass.parts = pass.n / (stride * pass.level.length);
      pass.roots = At(tables.roots);
      pass.chirp = At(tables.chirp);
      pass.spectrum = At(tables.spectrum);
      if (i > 0) {
        pass.from = FftFrom::kArray;
        pass.in = At(work + (first + i - 1) % 2 * size);
        pass.chirps_in = false;
      }
      if (i + 1 < length.count) {
        pass.to = FftTo::kArray;
        pass.out = At(work + (first + i) % 2 * size);
        pass.chirps_out = false;
      }
      const auto at = static_cast<size_t>(first + i);
      if (lists.size() <= at) lists.resize(at + 1);
      Add(pass, lists[at]);
      stride *= pass.level.length;
    }
  }

  void Add(FftPass pass, PassList& to) {
    // 32 KB a line of each array leave room for three blocks a processor. Rows of an odd number of
    // elements spread a line over all banks.
    constexpr int64_t kElements = FftLevel::kMostLine, kMostLines = 64;
    const int64_t length = pass.level.length, lines = pass.lines();
    const bool along = pass.n == length && pass.to != FftTo::kColumns;
    const int64_t least = along ? 1 : 4;
    int64_t width = std::clamp(DivideUp(lines, 2 * cuda_.processors), least, kMostLines);
    width = std::max<int64_t>(std::min(width, kElements / length), 1);
    if (along && width % 2 == 0) --width;
    pass.width = static_cast<int>(width);
    to.list.Add(pass, DivideUp(lines, width));
    to.shared_bytes = std::max(to.shared_bytes, FftSharedBytes(pass.width, pass.level.length));
    const double elements = static_cast<double>(lines * length);
    to.bytes += 2 * sizeof(FftComplex) * elements;
    to.flops += 8 * elements * (std::log2(static_cast<double>(length)) + 4);
  }

  const Cuda& cuda_;
  std::vector<Tables> lengths_;
  std::vector<Task> tasks_;
  int64_t elements_ = 0;
  double table_elements_ = 0;
  FftComplex* memory_ = nullptr;
  ProblemList<FftTable> tables_;
  std::vector<PassList> spectra_, rows_, columns_;
};

DeviceStatus RunOwn(CudaDevice& device, Stream& stream, const FftArgs& args) {
  FftLaunch launch(args, CudaOf(device));
  if (launch.empty()) return {};
  const std::shared_ptr<Buffer> scratch = TakeShared(stream, launch.bytes());
  if (scratch == nullptr) return NoMemory(stream);
  auto* const memory = stream.is_dry() ? nullptr : static_cast<FftComplex*>(scratch->data());
  return launch.Run(device, stream, memory);
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const FftArgs& args) {
  LibraryFfts library(device, stream);
  FftArgs own;
  for (const FftProblem& p : args.problems) {
    if (!library.Take(p)) own.problems.push_back(p);
  }
  if (!library.empty()) {
    // Own kernels serve where the library fails.
    Stream all(device, nullptr);
    all.alike() = stream.alike();
    if (DeviceStatus status = RunOwn(device, all, args); !status.ok()) return status;
    if (stream.is_dry()) stream.work().host_bytes += all.work().host_bytes;
    const int64_t own_bytes = all.workspace().peak_bytes();
    if (DeviceStatus status = library.Run(own_bytes, &own.problems); !status.ok()) return status;
  }
  return RunOwn(device, stream, own);
}

}  // namespace attnd::cuda
