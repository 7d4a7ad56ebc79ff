// The work of one Attend on the CPU: its items, longest first, fixed by each problem alone
// but for which query tiles share an item, which changes no result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/attend/attend_item.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device/device.h"

namespace attnd {

// Visible pairs of all heads and sequences.
double VisiblePairs(const AttendProblem& problem);

class AttendWork {
 public:
  AttendWork(const Cpu& cpu, const AttendArgs& args);

  // Known from shapes and counts alone, so also on a dry stream: scratch floats of one thread,
  // states of parts of rows, seconds on one thread, and about how many items.
  int64_t scratch_floats() const { return scratch_.Floats(); }
  int64_t states() const { return states_; }
  double serial_seconds() const { return serial_seconds_; }
  int64_t dry_items() const { return dry_items_; }
  // At most, of the list of items, three times as large while it grows.
  int64_t host_bytes() const { return 3 * dry_items_ * static_cast<int64_t>(sizeof(Entry)); }

  // Reads patterns. The items are in host memory, some bytes for each 64 queries.
  void List();
  int64_t items() const { return static_cast<int64_t>(items_.size()); }
  AttendItem Item(int64_t n) const;

  // One query tile whose key tiles are looked at in several items.
  struct Split {
    int64_t first_state;
    int64_t parts;
    int64_t left;  // parts to come; for std::atomic_ref
  };
  // Null: item n is whole. Else it is part number `part` of it.
  Split* SplitOf(int64_t n) { return items_[n].split < 0 ? nullptr : &splits_[items_[n].split]; }
  int64_t part(int64_t n) const { return items_[n].part; }
  // The item n with all of its key tiles.
  AttendItem Whole(int64_t n) const;

 private:
  struct Entry {
    int64_t level = 0;  // 0: the longest; while listing, the work
    int32_t problem = 0;
    int32_t head = 0;   // b * H + h
    int64_t first = 0;  // slot, or place in unplaced_
    int64_t rows = 0;
    bool is_placed = true;  // false: rows of unplaced_, which see nothing
    int32_t split = -1, part = 0;
    bool counts_pairs = false;  // AttendItem::computed_pairs
    auto operator<=>(const Entry&) const = default;
  };

  void ListHead(int32_t problem, int64_t b, int64_t h, bool counts_pairs, int64_t* states);
  void ListUnplaced(const Pattern& pattern, const Entry& head, int64_t Nq);
  void Add(const Entry& entry);

  const AttendArgs& args_;
  AttendScratch scratch_;
  int64_t tiles_ = 1;  // query tiles of an item
  int64_t states_ = 0, dry_items_ = 0;
  double serial_seconds_ = 0;
  std::vector<Entry> items_;
  std::vector<Split> splits_;
  std::vector<int32_t> unplaced_;
};

}  // namespace attnd
