#include "kernels/cpu/attend/attend.h"

#include <atomic>

#include "kernels/core/integer.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attend/attend_work.h"
#include "kernels/cpu/cpu_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend/attend.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_forward-inl.h"
#include "kernels/cpu/attend/few_keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// With `state` the item is one tile, whose state is saved instead of its rows.
void RunItem(const AttendItem& item, float* scratch, float* state) {
  if (state == nullptr && item.SeesAllOfFew()) return FewKeys(item, scratch).Run();
  AttendQueries(item, scratch, state);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
DeviceStatus CpuAttend(CpuDevice& device, Stream& stream, const AttendArgs& args) {
  const Cpu& cpu = device.cpu();
  AttendWork work(cpu, args);
  if (work.dry_items() == 0) return DeviceStatus();
  // Whole pages a thread: no two threads write one cache line.
  const int64_t floats = RoundUp(work.scratch_floats(), 1024);
  const int64_t state_floats = AttendStateFloats(args.problems[0].v.shape[3]);
  auto scratch = Take(stream, floats * cpu.threads * 4);
  if (scratch == nullptr) return NoMemory(stream);
  auto states = Take(stream, work.states() * state_floats * 4);
  if (states == nullptr) return NoMemory(stream);
  if (stream.is_dry()) stream.work().host_bytes += work.host_bytes();
  const double predicted = cpu.ParallelSeconds(work.serial_seconds(), work.dry_items());
  if (Predicted(stream, Cpu::kLaunchSeconds + predicted)) return DeviceStatus();
  work.List();
  auto* run =
      Choose(cpu.isa, HWY_CHOOSE_SSE4(RunItem), HWY_CHOOSE_AVX2(RunItem), HWY_CHOOSE_AVX3(RunItem));
  auto* merge = Choose(cpu.isa, HWY_CHOOSE_SSE4(MergeQueries), HWY_CHOOSE_AVX2(MergeQueries),
                       HWY_CHOOSE_AVX3(MergeQueries));
  float* base = static_cast<float*>(scratch->data());
  const auto state = [&](int64_t n) {
    return static_cast<float*>(states->data()) + n * state_floats;
  };
  cpu.ForEach(stream, work.items(), work.serial_seconds(), [&](int64_t n, int thread) {
    float* own = base + thread * floats;
    AttendWork::Split* split = work.SplitOf(n);
    if (split == nullptr) return run(work.Item(n), own, nullptr);
    run(work.Item(n), own, state(split->first_state + work.part(n)));
    // The thread that finishes last sees the states of all others, and merges them.
    if (std::atomic_ref(split->left).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    merge(work.Whole(n), own, state(split->first_state), split->parts);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
