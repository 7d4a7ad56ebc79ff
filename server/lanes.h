// The lanes of the server, and the thread that watches over their queue.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "server/lane.h"

namespace attnd {

// As many lanes as batches may run at once. They share the engine's threads; each has a thread of
// its own for the serial part of its batch.
class Lanes {
 public:
  // `parts` as those of a lane; `index` counts up from theirs.
  Lanes(const Lane::Parts& parts, int count);
  // REQUIRES: the batcher was closed, if the lanes were started.
  ~Lanes();

  // RESOURCE_EXHAUSTED: no thread.
  [[nodiscard]] absl::Status Start();
  void Join();  // REQUIRES: the batcher was closed. Returns when the last batch is answered

  // Answers those whose deadline has passed or that were cancelled, waiting or running, and stops
  // the runs that nobody waits for any more. Any thread.
  void Sweep();

  // Has each lane watched. Before the watchdog starts; they outlive it.
  void WatchBy(Watchdog* watchdog);

  int64_t input_bytes() const;  // of all lanes; any thread

 private:
  Batcher* const batcher_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::thread watch_;
};

}  // namespace attnd
