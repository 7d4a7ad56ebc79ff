// How many batches may run at a time, by how long they are predicted to take.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace attnd {

// One of the places is for batches of at most kLimits[0] seconds, one for those of at most
// kLimits[1], and so on: the longer batches are, the fewer of them run, so that shorter ones find a
// place beside them. One client may take all but one of the places for each kind, if there are at
// least two.
class Places {
 public:
  static constexpr std::array<double, 4> kLimits = {0.005, 0.05, 1, 20};
  static constexpr size_t kLong = 1, kRaised = 2;  // indices in kLimits; see Batcher
  // How many batches are longer than each of the limits.
  using Counts = std::array<int, kLimits.size()>;

  explicit Places(int all) : all_(all) {}

  int all() const { return all_; }
  // Places for batches longer than a limit; at least one.
  int Longer(size_t limit) const { return std::max(1, all_ - 1 - static_cast<int>(limit)); }
  int LongerOfClient(size_t limit) const { return std::max(1, Longer(limit) - 1); }

  // The longest batch that may start for a client that has `own` of all the batches that `run`.
  double Longest(const Counts& run, const Counts& own) const {
    for (size_t i = 0; i < kLimits.size(); ++i) {
      if (run[i] >= Longer(i) || own[i] >= LongerOfClient(i)) return kLimits[i];
    }
    return std::numeric_limits<double>::infinity();
  }

  // Counts a batch of `seconds` that begins (1) or ends (-1).
  static void Add(double seconds, int change, Counts* counts) {
    for (size_t i = 0; i < kLimits.size() && seconds > kLimits[i]; ++i) (*counts)[i] += change;
  }

 private:
  int all_;
};

}  // namespace attnd
