#include "tests/cuda/costs/table.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/cuda/costs/accesses.h"
#include "tests/cuda/emulator/options.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

// H200 SXM by its data sheet, dense: FLOP/s of 16-bit, of TF32 and of float32 products, bytes a
// second of HBM. 132 multiprocessors reach the first at 1.83 GHz, of 128 bytes of shared memory a
// clock each. L2: the 5120 bytes a clock that NVIDIA gives for A100; none are published for Hopper.
constexpr double kPeak16 = 989e12, kPeakTf32 = 494e12, kPeakScalar = 67e12, kPeakBytes = 4.8e12;
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

}  // namespace

Table::Table(bool with_places) : with_places_(with_places) {
  std::printf(
      "| kernel | products / least | bytes / least | used of sectors read, written | passes of "
      "shared memory: all, beyond least, of one word | barriers a block | us: least, by counts | "
      "limit |\n|---|---|---|---|---|---|---|---|\n");
}

void Table::Row(const std::string& name, const Least& least, const Launch& launch) const {
  Device& device = CpuOf("cuda", 1);
  emu::TakeCounters();
  TakeAccesses();
  RunOn(device, [&](Stream& stream) { return device.Run(stream, launch); });
  const emu::Counters c = emu::TakeCounters();
  const Accesses a = TakeAccesses();
  if (static_cast<double>(a.writes.bytes) < least.written) {
    std::fprintf(stderr, "costs: %s: %" PRId64 " bytes were written, not %.0f\n", name.c_str(),
                 a.writes.bytes, least.written);
    std::exit(1);
  }
  // An m16n8k16 product has 4096 FLOPs, an m16n8k8 one 2048; a split one takes three.
  const double half = 4096.0 * static_cast<double>(c.mma_bf16 + c.mma_f16);
  const double tf32 = 2048.0 * static_cast<double>(c.mma_tf32);
  const double sectors = 32.0 * static_cast<double>(a.reads.sectors + a.writes.sectors);
  // A matrix of ldmatrix is 128 bytes, a pass.
  const int64_t matrices = 4 * c.ldmatrix;
  const int64_t least_passes = a.shared.least_passes + matrices;
  const int64_t passes = a.shared.passes + matrices + c.bank_conflicts;
  const bool is_scalar = least.unit == Unit::kScalar;
  const double compute = is_scalar ? least.flops / kPeakScalar : half / kPeak16 + tf32 / kPeakTf32;
  const std::pair<double, const char*> limits[] = {
      {compute, is_scalar ? "scalar products" : "tensor cores"},
      {least.bytes / kPeakBytes, "HBM"},
      {sectors / kL2Bytes, "L2"},
      {static_cast<double>(passes) / kPassesASecond, "shared memory"}};
  const auto& limit = *std::max_element(std::begin(limits), std::end(limits));
  const double at_least = std::max(least.flops / PeakOf(least.unit), least.bytes / kPeakBytes);
  std::printf("| %s | %s | %.2f | %s, %s | %" PRId64 ", %" PRId64 ", %" PRId64
              " | %.0f | %.3f, %.3f | %s |\n",
              name.c_str(),
              is_scalar ? "-" : Number("%.2f", (half + tf32 / 3) / least.flops).c_str(),
              sectors / least.bytes, Share(a.reads.bytes, a.reads.sectors).c_str(),
              Share(a.writes.bytes, a.writes.sectors).c_str(), passes, passes - least_passes,
              a.shared.alike,
              static_cast<double>(c.barriers) / static_cast<double>(std::max<int64_t>(c.blocks, 1)),
              at_least * 1e6, limit.first * 1e6, limit.second);
  std::fflush(stdout);
  if (!with_places_) return;
  for (const Place& place : WorstPlaces(8)) {
    if (place.sectors_beyond + place.passes_beyond == 0) continue;
    std::printf("    %" PRId64 " sectors, %" PRId64 " passes beyond: %s", place.sectors_beyond,
                place.passes_beyond, Describe(place).c_str());
  }
}

}  // namespace attnd::testing
