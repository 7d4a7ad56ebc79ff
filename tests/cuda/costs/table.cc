#include "tests/cuda/costs/table.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "tests/cuda/costs/accesses.h"
#include "tests/cuda/costs/arithmetic.h"
#include "tests/cuda/emulator/options.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

// H200 SXM by its data sheet, dense: FLOP/s of 16-bit, of TF32 and of float32 products, bytes a
// second of HBM. 132 multiprocessors reach the first at 1.83 GHz, of 128 bytes of shared memory a
// clock each. L2: the 5120 bytes a clock that NVIDIA gives for A100; none are published for Hopper.
constexpr double kPeak16 = 989e12, kPeakTf32 = 494e12, kPeakScalar = 67e12, kPeakBytes = 4.8e12;
// Of float32 instructions without tensor cores a product with a sum is one; an eighth as many of
// special functions.
constexpr double kPlainRate = kPeakScalar / 2, kSpecialRate = kPlainRate / 8;
constexpr double kClock = 1.83e9, kPassesASecond = 132 * kClock, kL2Bytes = 5120 * kClock;

// float32 takes three products of TF32.
double PeakOf(Unit unit) {
  if (unit == Unit::kTensor16) return kPeak16;
  return unit == Unit::kTensorSplit ? kPeakTf32 / 3 : kPeakScalar;
}

std::string Number(const char* format, double x) {
  char text[32];
  std::snprintf(text, sizeof(text), format, x);
  return text;
}

std::string Share(int64_t bytes, int64_t sectors) {
  if (sectors == 0) return "-";
  return Number("%.2f", static_cast<double>(bytes) / (32.0 * static_cast<double>(sectors)));
}

// What a launch did, and what that costs.
struct Counts {
  emu::Counters c;
  Accesses a;
  Arithmetic arithmetic;
  double products = 0;  // FLOPs of tensor cores; a split one takes three
  double sectors = 0;   // bytes
  int64_t passes = 0, least_passes = 0;
  double seconds = 0;
  const char* limit = "";
};

Counts CountsOf(const Least& least, const Launch& launch) {
  Device& device = CpuOf("cuda", 1);
  BufferPool pool(/*retain_bytes=*/0, /*poison=*/true);
  Stream stream(device, &pool);
  emu::TakeCounters();
  TakeAccesses();
  TakeArithmetic();
  const DeviceStatus status = device.Run(stream, launch);
  if (!status.ok()) {
    std::fprintf(stderr, "costs: %s\n", status.text().c_str());
    std::exit(1);
  }
  Counts n = {.c = emu::TakeCounters(), .a = TakeAccesses(), .arithmetic = TakeArithmetic()};
  // An m16n8k16 product has 4096 FLOPs, an m16n8k8 one 2048.
  const double half = 4096.0 * static_cast<double>(n.c.mma_bf16 + n.c.mma_f16);
  const double tf32 = 2048.0 * static_cast<double>(n.c.mma_tf32);
  n.products = half + tf32 / 3;
  n.sectors = 32.0 * static_cast<double>(n.a.reads.sectors + n.a.writes.sectors);
  // A matrix of ldmatrix is 128 bytes, a pass.
  const int64_t matrices = 4 * n.c.ldmatrix;
  n.least_passes = n.a.shared.least_passes + matrices;
  n.passes = n.a.shared.passes + matrices + n.c.bank_conflicts;
  const std::pair<double, const char*> limits[] = {
      {half / kPeak16 + tf32 / kPeakTf32, "tensor cores"},
      {static_cast<double>(n.arithmetic.plain) / kPlainRate, "float32"},
      {static_cast<double>(n.arithmetic.special) / kSpecialRate, "special functions"},
      {least.bytes / kPeakBytes, "HBM"},
      {n.sectors / kL2Bytes, "L2"},
      {static_cast<double>(n.passes) / kPassesASecond, "shared memory"}};
  std::tie(n.seconds, n.limit) = *std::max_element(std::begin(limits), std::end(limits));
  return n;
}

}  // namespace

std::string NameOf(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bf16";
}
Unit UnitOf(DType dtype) { return dtype == DType::kF32 ? Unit::kTensorSplit : Unit::kTensor16; }

Table::Table(bool with_places) : with_places_(with_places) {
  std::printf(
      "| kernel | products / least | bytes / least | used of sectors read, written | passes of "
      "shared memory: all, beyond least, of one word | float32 instructions of warps, special "
      "functions | barriers a block | us: least, by counts | limit |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
}

double Table::Seconds(const Least& least, const Launch& launch) {
  return CountsOf(least, launch).seconds;
}

void Table::Row(const std::string& name, const Least& least, const Launch& launch,
                double expected) const {
  const Counts n = CountsOf(least, launch);
  if (static_cast<double>(n.a.writes.bytes) < least.written) {
    std::fprintf(stderr, "costs: %s: %" PRId64 " bytes were written, not %.0f\n", name.c_str(),
                 n.a.writes.bytes, least.written);
    std::exit(1);
  }
  const double blocks = static_cast<double>(std::max<int64_t>(n.c.blocks, 1));
  const double at_least = std::max(least.flops / PeakOf(least.unit), least.bytes / kPeakBytes);
  const std::string beside =
      expected == 0 ? "" : Number(": %.2f of density x dense", n.seconds / expected);
  std::printf("| %s%s | %s | %.2f | %s, %s | %" PRId64 ", %" PRId64 ", %" PRId64 " | %" PRId64
              ", %" PRId64 " | %.0f | %.3f, %.3f | %s |\n",
              name.c_str(), beside.c_str(),
              least.unit == Unit::kScalar ? "-" : Number("%.2f", n.products / least.flops).c_str(),
              n.sectors / least.bytes, Share(n.a.reads.bytes, n.a.reads.sectors).c_str(),
              Share(n.a.writes.bytes, n.a.writes.sectors).c_str(), n.passes,
              n.passes - n.least_passes, n.a.shared.alike, n.arithmetic.plain / 32,
              n.arithmetic.special / 32, static_cast<double>(n.c.barriers) / blocks, at_least * 1e6,
              n.seconds * 1e6, n.limit);
  std::fflush(stdout);
  if (!with_places_) return;
  for (const Place& place : WorstPlaces(8)) {
    if (place.sectors_beyond + place.passes_beyond == 0) continue;
    std::printf("    %" PRId64 " sectors, %" PRId64 " passes beyond: %s", place.sectors_beyond,
                place.passes_beyond, Describe(place).c_str());
  }
}

}  // namespace attnd::testing
