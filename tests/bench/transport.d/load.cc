#include "tests/bench/transport.d/load.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

namespace attnd::bench {
namespace {

AlignedBytes RandomFloats(size_t bytes, unsigned seed) {
  AlignedBytes memory(bytes);
  std::minstd_rand random(seed);
  for (size_t at = 0; at + sizeof(float) <= bytes; at += sizeof(float)) {
    const float value = 0.5f + static_cast<float>(random() % (1 << 20)) * 0x1p-21f;
    std::memcpy(memory.data() + at, &value, sizeof value);
  }
  return memory;
}

}  // namespace

std::vector<Inputs> RandomInputs(int callers, size_t bytes) {
  std::vector<Inputs> inputs;
  for (int i = 0; i < callers; ++i) {
    const auto seed = static_cast<unsigned>(2 * i + 1);
    Inputs& one = inputs.emplace_back();
    one.q = RandomFloats(bytes, seed);
    one.k = RandomFloats(bytes, seed + 1);
    one.v = one.q;
  }
  return inputs;
}

Slice::Slice(int callers, double seconds)
    : start_(Clock::now()),
      end_(start_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
      records_(static_cast<size_t>(callers)) {
  constexpr double kMostCallsPerSecond = 200e3;
  const double most = kMostCallsPerSecond * seconds / callers;
  for (Record& record : records_) record.latencies_us.reserve(static_cast<size_t>(most) + 1);
}

void Slice::Begin(int caller) { records_[static_cast<size_t>(caller)].begun = Clock::now(); }

bool Slice::Again(int caller) {
  Record& record = records_[static_cast<size_t>(caller)];
  const Clock::time_point now = Clock::now();
  record.latencies_us.push_back(
      std::chrono::duration<float, std::micro>(now - record.begun).count());
  record.begun = now;
  return now < end_;
}

std::string Slice::Json() {
  std::vector<float> all;
  Clock::time_point last = start_;
  for (const Record& record : records_) {
    all.insert(all.end(), record.latencies_us.begin(), record.latencies_us.end());
    last = std::max(last, record.begun);
  }
  std::sort(all.begin(), all.end());
  char text[160];
  std::snprintf(text, sizeof text, R"({"calls":%zu,"seconds":%.6f,"p50_us":%.2f,"p99_us":%.2f})",
                all.size(), std::chrono::duration<double>(last - start_).count(),
                all[all.size() / 2], all[all.size() * 99 / 100]);
  return text;
}

void RunBlocking(Slice& slice, const std::function<void(int)>& call) {
  const auto loop = [&](int caller) {
    slice.Begin(caller);
    do call(caller);
    while (slice.Again(caller));
  };
  std::vector<std::thread> others;
  for (int caller = 1; caller < slice.callers(); ++caller) others.emplace_back(loop, caller);
  loop(0);
  for (std::thread& thread : others) thread.join();
}

AsyncRun::AsyncRun(Slice& slice, std::function<void(int)> start)
    : slice_(slice), start_(std::move(start)), left_(slice.callers()) {}

void AsyncRun::Run() {
  for (int caller = 0; caller < slice_.callers(); ++caller) {
    slice_.Begin(caller);
    start_(caller);
  }
  std::unique_lock lock(mu_);
  none_left_.wait(lock, [this] { return left_ == 0; });
}

void AsyncRun::Done(int caller) {
  if (slice_.Again(caller)) return start_(caller);
  const std::lock_guard lock(mu_);
  if (--left_ == 0) none_left_.notify_one();
}

void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

}  // namespace attnd::bench
