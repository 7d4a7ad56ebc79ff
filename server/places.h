// How many batches run beside each other, by how long they are predicted to take.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace attnd {

// One of the places is for batches of at most kLimits[0] seconds, one for those of at most
// kLimits[1], and so on: the longer something takes the fewer of its kind run, so that shorter work
// finds a place beside them. Of the places for each kind one client has all but one, where there
// are two.
class Places {
 public:
  static constexpr std::array<double, 4> kLimits = {0.005, 0.05, 1, 20};
  static constexpr size_t kLong = 1, kRaised = 2;  // of these limits; see Batcher
  // How many batches are longer than each of the limits.
  using Counts = std::array<int, kLimits.size()>;

  explicit Places(int all) : all_(all) {}

  int all() const { return all_; }
  // For batches longer than a limit; there is always one.
  int Longer(size_t limit) const { return std::max(1, all_ - 1 - static_cast<int>(limit)); }
  int LongerOfClient(size_t limit) const { return std::max(1, Longer(limit) - 1); }

  // The longest that may start for a client of which `own` run, of all that `run`.
  double Longest(const Counts& run, const Counts& own) const {
    for (size_t i = 0; i < kLimits.size(); ++i) {
      if (run[i] >= Longer(i) || own[i] >= LongerOfClient(i)) return kLimits[i];
    }
    return std::numeric_limits<double>::infinity();
  }

  // A batch of so many seconds begins (1) or ends (-1).
  static void Add(double seconds, int change, Counts* counts) {
    for (size_t i = 0; i < kLimits.size() && seconds > kLimits[i]; ++i) (*counts)[i] += change;
  }

 private:
  int all_;
};

}  // namespace attnd
