// Orthonormal columns.
#pragma once

#include <cstdint>

namespace attnd {

// Makes `count` columns of `D` numbers, one after the other in memory, orthonormal in their order:
// the Q of a QR decomposition with a positive diagonal of R. Orthogonal to rounding. The same
// numbers on every CPU; the first columns do not depend on `count`. A stopped run (CheckPoint) ends
// it early. REQUIRES: count <= D, and columns that are independent.
void Orthonormalise(int64_t D, int64_t count, double* columns);

}  // namespace attnd
