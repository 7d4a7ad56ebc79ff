#include "options.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

namespace emu {
namespace {

std::mutex counters_mu;
Counters total;

int64_t Number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

}  // namespace

Options OptionsFromEnvironment() {
  Options o;
  const char* order = std::getenv("EMULATED_CUDA_ORDER");
  if (order != nullptr && std::strcmp(order, "reverse") == 0) o.order = Order::kReverse;
  if (order != nullptr && std::strcmp(order, "random") == 0) o.order = Order::kRandom;
  o.seed = static_cast<uint64_t>(Number("EMULATED_CUDA_SEED", 1));
  o.workers = static_cast<int>(Number("EMULATED_CUDA_WORKERS", 1));
  return o;
}

Options options = OptionsFromEnvironment();

Counters& Counters::operator+=(const Counters& other) {
  launches += other.launches;
  blocks += other.blocks;
  switches += other.switches;
  barriers += other.barriers;
  mma_f16 += other.mma_f16;
  mma_bf16 += other.mma_bf16;
  mma_tf32 += other.mma_tf32;
  ldmatrix += other.ldmatrix;
  bank_conflicts += other.bank_conflicts;
  async_bytes += other.async_bytes;
  copied_bytes += other.copied_bytes;
  return *this;
}

Counters TakeCounters() {
  const std::lock_guard lock(counters_mu);
  return std::exchange(total, {});
}

void AddCounters(const Counters& counters) {
  const std::lock_guard lock(counters_mu);
  total += counters;
}

}  // namespace emu
