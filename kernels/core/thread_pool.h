// The pool of worker threads behind a CPU lane.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace attnd {

// `threads` ways of work: the caller and threads - 1 workers. Items are drawn one at a time from
// one atomic counter, in index order, so callers put the longest first. Completion is counted in
// items: a worker that wakes up late finds nothing and nobody waits for it. Workers spin for some
// tens of microseconds after work, then sleep. Every worker sets flush-to-zero (denormals cost 20
// times).
//
// What `fn` throws comes out of ParallelFor after all items are done (the first, if several do).
//
// One ParallelFor at a time per pool. The caller's own floating point mode is set for the
// duration of the call and restored.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();

  int threads() const;

  // Calls fn(item, thread) for every item in [0, items), thread in [0, threads()). Returns when all
  // are done. `parallel` false runs all on the caller: for work too small to wake anybody (about
  // 20 us; waking a sleeping worker costs 50).
  void ParallelFor(int64_t items, bool parallel, const std::function<void(int64_t, int)>& fn);

  // ParallelFor calls so far; a test proves with it that a primitive launches once for a list.
  int64_t launches() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
