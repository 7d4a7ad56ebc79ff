// A device: its memory, its streams, the launches that it runs, and the figures of it that planning
// needs. The arguments of the primitives are in the other headers of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/device/launch.h"
#include "kernels/device/memory.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd {

struct DeviceInfo {
  std::string name;             // "cpu" or "cuda:0": metric label, `device` field of requests
  std::string description;      // "AVX2, 2 threads": for people
  std::string instruction_set;  // "AVX2", "sm_90"
  int threads = 1;              // that compute
  double peak_flops = 0;        // FLOP/s: float32, measured at start; of CUDA 16-bit, by data sheet
  double bytes_per_second = 0;  // measured at start-up, streaming read
  // Measured at start-up: writing to memory that the process does not have yet, which the system
  // clears first. 0: new memory costs no more than reused memory.
  double new_bytes_per_second = 0;
  int64_t memory_bytes = 0;  // that may be used; 0: unknown
  // The host may read and write its memory; it sees the work of a stream after Stream::Wait
  // returned.
  bool has_host_memory = true;
  PatternTuning patterns;
};

// What a device has done so far.
struct DeviceCounters {
  int64_t launches = 0;
  // Copied between the host and a device whose memory is not the host's.
  int64_t bytes_to_device = 0, bytes_to_host = 0;
};

// What the driver of a device reads at a moment; what it does not know is absent.
struct DeviceReadings {
  std::optional<double> utilisation;  // 0..1
  std::optional<double> power_watts, temperature_celsius;
  std::optional<int64_t> memory_used_bytes, memory_total_bytes;  // by all processes
};

// Thread safe; stateless apart from its memory. A device may return from a call before the work is
// done: the work of one stream runs in the order of the calls, and Stream::Wait waits for it and
// returns the failure of work that ran later. After such a failure the device skips the rest of the
// stream's work until Stream::Wait. Only the device accesses the memory that it allocates, unless
// info().has_host_memory.
//
// Results do not depend on how a device cuts the work, on the other problems of a list, or on the
// run. Outputs may not overlap inputs unless a contract says so; no problem of a list reads what
// another one writes. ops has checked the arguments.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual BufferPool& memory() = 0;
  // The queue of a new stream. Null: calls return when their work is done.
  virtual std::shared_ptr<WorkQueue> NewQueue() { return nullptr; }

  // Takes scratch memory from the workspace of `stream` only. On a dry stream it makes the very
  // same allocations and adds the predicted seconds, and the host memory that it will take, to
  // stream.work(). A device declines a launch on every stream, dry or not, or on none.
  virtual DeviceStatus Run(Stream& stream, Launch launch) = 0;

  // Copies bytes into memory of this device. `spans` are the pieces in order, of any alignment.
  // `source` keeps them alive and is released once they have been read; null: the caller keeps them
  // alive until `stream` has waited. Only predicts on a dry stream, where no bytes need be there.
  virtual DeviceStatus Upload(Stream& stream, void* destination,
                              std::span<const std::span<const std::byte>> spans,
                              std::shared_ptr<const void> source) = 0;
  // Copies memory of this device out; `bytes` hold it once `stream` has waited. Only predicts on a
  // dry stream.
  virtual DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) = 0;

  // Why it has failed for good: calls fail, and its memory is lost. One line; empty: it works.
  virtual std::string failure() const { return {}; }

  // Launches so far that could use the whole device. A test proves with it that a primitive
  // launches once for a list.
  virtual int64_t launches() const { return 0; }
  virtual DeviceCounters counters() const { return {.launches = launches()}; }
  virtual DeviceReadings readings() const { return {}; }
};

}  // namespace attnd
