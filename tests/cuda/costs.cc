// Prints what the emulator counts of tensor-core kernels against the least that their shapes need,
// as rows of tests/bench/README.md. Times are estimates: no device ran.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/cpu/attend_case.h"
#include "tests/cuda/emulator/options.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

// H200 SXM by its data sheet, dense: FLOP/s of 16-bit and of TF32 products, bytes a second of HBM.
constexpr double kPeak16 = 989e12, kPeakTf32 = 494e12, kPeakBytes = 4.8e12;

// What a shape needs at least: multiply-adds count twice, every array moves once.
struct Least {
  double flops, bytes;
};

void PrintRow(const std::string& name, bool is_f32, const Least& least, const emu::Counters& c) {
  // An m16n8k16 product has 4096 FLOPs, an m16n8k8 one 2048; float32 takes three of TF32.
  const double tf32 = 2048.0 * static_cast<double>(c.mma_tf32);
  const double half = 4096.0 * static_cast<double>(c.mma_bf16 + c.mma_f16);
  const double done = half + tf32 / 3, loaded = static_cast<double>(c.async_bytes);
  const double tensor_us = (half / kPeak16 + tf32 / kPeakTf32) * 1e6;
  const double memory_us = least.bytes / kPeakBytes * 1e6;
  const int64_t matrices = 4 * c.ldmatrix;
  std::printf(
      "| %s | %.2f | %.2f | %s | %.1f | %.0f | %.3f, %.3f: %s |\n", name.c_str(),
      done / least.flops, loaded / least.bytes,
      is_f32 ? "-" : (std::to_string(c.bank_conflicts) + " of " + std::to_string(matrices)).c_str(),
      done / std::max(loaded, 1.0),
      static_cast<double>(c.barriers) / static_cast<double>(std::max<int64_t>(c.blocks, 1)),
      tensor_us, memory_us, tensor_us > memory_us ? "tensor cores" : "memory");
}

void Attend(DType dtype, int64_t D, bool causal) {
  constexpr int64_t N = 512;
  const AttendCase c({.Nq = N,
                      .Nk = N,
                      .D = D,
                      .Dv = D,
                      .dtype = dtype,
                      .mask = causal ? MaskKind::kCausal : MaskKind::kNone},
                     1);
  Device& device = CpuOf("cuda", 1);
  const double pairs = static_cast<double>(causal ? N * (N + 1) / 2 : N * N);
  const auto width = static_cast<double>(D), array = static_cast<double>(N * D * SizeOf(dtype));
  const std::string shape = std::string(" ") + (dtype == DType::kF32 ? "float32" : "bf16") +
                            ", D " + std::to_string(D) + (causal ? ", causal" : ", dense");
  emu::TakeCounters();
  AttendArgs forward{.params = {.scale = c.scale}, .problems = {c.Forward()}};
  RunOn(device, [&](Stream& stream) { return device.Run(stream, forward); });
  PrintRow("`attend`" + shape, dtype == DType::kF32, {4 * width * pairs, 4 * array},
           emu::TakeCounters());
  AttendGradArgs backward{.params = {.scale = c.scale}, .problems = {c.Backward()}};
  RunOn(device, [&](Stream& stream) { return device.Run(stream, backward); });
  PrintRow("its gradient" + shape, dtype == DType::kF32, {10 * width * pairs, 8 * array},
           emu::TakeCounters());
}

void MatMul(DType dtype, int64_t M, int64_t N, int64_t K) {
  const TestArray a = TestArray::Random(1, dtype, {M, K}), b = TestArray::Random(2, dtype, {K, N});
  const TestArray out(dtype, {M, N});
  Device& device = CpuOf("cuda", 1);
  const MatMulArgs args{.problems = {{a.view(), b.view(), {}, {}, out.view()}}};
  emu::TakeCounters();
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
  const std::string shape =
      std::to_string(M) + " x " + std::to_string(N) + " x " + std::to_string(K);
  PrintRow(std::string("`matmul` ") + (dtype == DType::kF32 ? "float32, " : "bf16, ") + shape,
           dtype == DType::kF32,
           {2.0 * static_cast<double>(M * N * K),
            static_cast<double>((M * K + K * N + M * N) * SizeOf(dtype))},
           emu::TakeCounters());
}

void PrintAll() {
  std::printf(
      "| kernel | products / least | bytes of `cp.async` / least of all arrays | conflicts of "
      "`ldmatrix` "
      "| FLOPs a byte of `cp.async` | barriers a block | estimated us of tensor cores, of memory: "
      "bound |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const int64_t D : {64, 128}) {
    for (const bool causal : {false, true}) Attend(DType::kBF16, D, causal);
  }
  Attend(DType::kF32, 64, false);
  MatMul(DType::kBF16, 512, 512, 512);
  MatMul(DType::kF32, 512, 512, 256);
}

}  // namespace
}  // namespace attnd::testing

int main() { attnd::testing::PrintAll(); }
