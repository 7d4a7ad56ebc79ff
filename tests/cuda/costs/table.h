// The table of tests/bench/README.md: what the emulator counts of a call against the least that its
// shape needs. Times are estimates by an H200's data sheet: no device ran.
#pragma once

#include <string>

#include "kernels/core/dtype.h"
#include "kernels/device/launch.h"

namespace attnd::testing {

// What computes.
enum class Unit { kTensor16, kTensorSplit, kScalar };

// Of attention: how rows call its elements, and what multiplies them.
std::string NameOf(DType dtype);
Unit UnitOf(DType dtype);

// What a shape needs at least: multiply-adds count twice, every array moves once.
struct Least {
  double flops = 0;
  Unit unit = Unit::kScalar;
  double bytes = 0;
  double written = 1;  // of them
};

// Prints as it goes. `with_places`: below each row the lines of code that cost most, too.
class Table {
 public:
  explicit Table(bool with_places);
  // Runs `launch` on the CUDA device. `expected`, if not 0: seconds that the row's own, by counts,
  // are told relative to.
  void Row(const std::string& name, const Least& least, const Launch& launch,
           double expected = 0) const;
  // Seconds by counts, without a row.
  static double Seconds(const Least& least, const Launch& launch);

 private:
  const bool with_places_;
};

// The kernels of each kind, a row a call.
void PrintAttend(const Table& table);
void PrintAttendPatterns(const Table& table);
void PrintScan(const Table& table);
void PrintRows(const Table& table);

// What one more tile of keys takes of a warp of attend's dense forward kernel of bf16, as JSON by
// D, for tests/cuda/hmma_share.py.
void PrintTile();

// Whether accesses and arithmetic of a known kernel are counted as they are; else says what is not.
bool CountsAreRight();

}  // namespace attnd::testing
