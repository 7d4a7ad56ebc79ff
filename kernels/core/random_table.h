// random_table: tables of numbers drawn from a seed, the same on every device. Host code; Ops::Draw
// uploads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// kOrthogonalRows: the table is [.., rows, D], a matrix for each head. Within each block of D rows
// they are orthogonal (Choromanski et al. 2021, section 2.4): the Q of a QR decomposition of
// normals, with a positive diagonal of R. The last block is cut.
enum class Distribution : uint8_t {
  kUniform,
  kNormal,
  kTruncatedNormal,
  kGumbel,
  kOrthogonalRows,
};
// Norms of orthogonal rows: those of independent rows of normals, or sqrt(D).
enum class RowNorms : uint8_t { kChi, kSqrtD };

// The numbers of a table. Equal parameters and shapes mean equal tables.
struct DrawParams {
  uint64_t seed = 0;
  std::string name;    // of the stream. Orthogonal rows have two: name.block, name.norm
  std::string suffix;  // ends the name of every stream: "#3"
  Distribution distribution = Distribution::kNormal;
  double low = 0, high = 1;  // of kUniform
  double deviation = 1;      // of kNormal, kTruncatedNormal
  RowNorms norms = RowNorms::kChi;

  bool operator==(const DrawParams&) const = default;
};
// U(-limit, limit).
DrawParams UniformDraw(uint64_t seed, std::string name, double limit);

// Bounds of a table that a request may have drawn: its elements, and the steps of DrawCost.
constexpr int64_t kMostDrawn = int64_t{1} << 24;
constexpr int64_t kMostDrawSteps = int64_t{1} << 30;

// What drawing a table takes, known from its shape.
struct DrawCost {
  int64_t elements = 0;  // those and steps: INT64_MAX where they would be more
  // Of orthogonal rows: m^2 D + 16 D^2 for each block of m <= D rows, about a nanosecond each; of
  // others 0.
  int64_t steps = 0;
  int64_t host_bytes = 0;  // the table, and scratch memory
  double seconds = 0;      // of one thread
};
DrawCost CostOfDraw(const DrawParams& params, const Shape& shape);

// The elements in row-major order, computed in float64 and rounded to float32 once. Draws on one
// thread. A stopped run (CheckPoint) ends it early, with a part of them and any values.
std::vector<float> DrawTable(const DrawParams& params, const Shape& shape);

}  // namespace attnd
