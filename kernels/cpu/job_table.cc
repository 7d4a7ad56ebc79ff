#include "kernels/cpu/job_table.h"

#include <algorithm>
#include <bit>

namespace attnd {

uint64_t RankOf(const RunControl* run, int threads) {
  constexpr int kHighest = 127, kLowest = -128;
  if (run == nullptr) return uint64_t{kHighest} << 56;
  const int priority = std::clamp(run->priority(), kLowest, kHighest);
  // Floats that are not negative order like their bits.
  const auto rest = std::bit_cast<uint32_t>(static_cast<float>(run->RemainingSeconds(threads)));
  return static_cast<uint64_t>(kHighest - priority) << 56 | uint64_t{rest} << 24;
}

Job* JobTable::Open(int64_t items, const std::function<void(int64_t, int)>& fn, RunControl* run,
                    uint64_t rank) {
  uint64_t word = bits_.load(std::memory_order_relaxed), bit;
  do {
    const uint64_t free = ~word & kAll;
    if (free == 0) return nullptr;
    bit = free & -free;
  } while (!bits_.compare_exchange_weak(word, word | bit, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  Job* const job = &jobs_[std::countr_zero(bit)];
  job->fn = &fn;
  job->run = run;
  job->items = items;
  job->done.store(0, std::memory_order_relaxed);
  job->rank.store(rank, std::memory_order_relaxed);
  job->passed_over_since.store(0, std::memory_order_relaxed);
  job->remaining.store(items, std::memory_order_release);
  bits_.fetch_or(bit << kOpen | bit << kOffered);
  return job;
}

void JobTable::Close(Job* job) { bits_.fetch_and(~(Bit(job) | Bit(job) << kOpen)); }

Job* JobTable::MostUrgent(uint64_t jobs, uint64_t rank) {
  Job* best = nullptr;
  for (; jobs != 0; jobs &= jobs - 1) {
    Job& job = jobs_[std::countr_zero(jobs)];
    const uint64_t own = job.rank.load(std::memory_order_relaxed);
    if (own >= rank) continue;
    rank = own;
    best = &job;
  }
  return best;
}

JobTable::Choice JobTable::Next(int64_t patience_ns) {
  const uint64_t jobs = offered();
  if (jobs == 0) return {};
  if ((jobs & (jobs - 1)) == 0) return {&jobs_[std::countr_zero(jobs)]};
  const int64_t now = RunControl::Clock::now().time_since_epoch().count();
  Job* const first = MostUrgent(jobs, kAnyRank);
  for (uint64_t rest = jobs & ~Bit(first); rest != 0; rest &= rest - 1) {
    Job& job = jobs_[std::countr_zero(rest)];
    int64_t since = 0;
    const bool is_first_look = job.passed_over_since.compare_exchange_strong(since, now);
    if (!is_first_look && now - since >= patience_ns) return {&job, true};
  }
  return {first};
}

// Clears the bit before the item counts as done: afterwards the place may hold the next job.
int64_t JobTable::Claim(Job* job) {
  int64_t left = job->remaining.load(std::memory_order_relaxed);
  do {
    if (left <= 0) return kNone;
  } while (!job->remaining.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                                 std::memory_order_relaxed));
  if (left == 1) bits_.fetch_and(~(Bit(job) << kOffered));
  if (job->passed_over_since.load(std::memory_order_relaxed) != 0) job->passed_over_since = 0;
  return job->items - left;
}

int64_t JobTable::ClaimRest(Job* job) {
  const int64_t left = job->remaining.exchange(0, std::memory_order_acq_rel);
  if (left > 0) bits_.fetch_and(~(Bit(job) << kOffered));
  return left;
}

}  // namespace attnd
