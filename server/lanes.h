// The lanes of a device, and the thread that runs Batcher::Watch.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "server/lane.h"

namespace attnd {

// One lane for each batch that may run at a time. They share the engine's threads; each has its own
// thread for the serial part of its batch.
class Lanes {
 public:
  // `parts` are those of each lane, with indices from `parts.index` on.
  Lanes(const Lane::Parts& parts, int count);
  // REQUIRES: the batcher was closed, if the lanes were started.
  ~Lanes();

  // RESOURCE_EXHAUSTED: no thread.
  [[nodiscard]] absl::Status Start();
  void Join();  // REQUIRES: the batcher was closed. Returns when the last batch is answered

  // Answers waiting and running tasks whose deadline has passed or that were cancelled, and stops
  // the runs whose tasks are all answered. Any thread.
  void Sweep();

  // Lane::CheckDevice, of any of them.
  absl::Status CheckDevice() const { return lanes_[0]->CheckDevice(); }

  // Registers each lane. Before the watchdog starts; the lanes outlive it.
  void WatchBy(Watchdog* watchdog);

  // Of all lanes; any thread.
  int64_t input_bytes() const;
  int64_t host_input_bytes() const;

 private:
  Batcher* const batcher_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::thread watch_;
};

}  // namespace attnd
