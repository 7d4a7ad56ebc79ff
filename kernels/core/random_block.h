// random_block: many Philox numbers at once, for RandomStream.
#pragma once

#include <cstdint>

namespace attnd {

// Numbers of one call: element e of the call is value e mod 4 of block first + e / 4.
constexpr int kDrawn = 64;

struct PhiloxKey {
  uint64_t seed, hash;
};

// x / 2^32 + 2^-33 of kDrawn words x, in (0, 1).
void DrawUniforms(PhiloxKey key, uint64_t first, double* out);
// Box-Muller in float64: of uniforms (u0, u1) of a block sqrt(-2 ln u0) (cos, sin)(2 pi u1).
void DrawNormals(PhiloxKey key, uint64_t first, double* out);
// The normal distribution function's inverse of Phi(-2) + u (Phi(2) - Phi(-2)).
void DrawTruncatedNormals(PhiloxKey key, uint64_t first, double* out);

}  // namespace attnd
