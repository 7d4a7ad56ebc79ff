#include "kernels/ops/pattern_residues.h"

#include "kernels/ops/pattern_tiles.h"

namespace attnd {

Visible SameResidue(std::span<const int32_t> query_rows, int64_t offset,
                    std::span<const int32_t> key_rows, int64_t Nk, int64_t modulus,
                    const Steps& steps) {
  // Keys of class c have the coordinates c width + [0, last_step], with room on either side. Only
  // the classes that hold keys count, so that coordinates stay below about 4 Nk.
  const int64_t last_step = Nk <= 0 ? 0 : (Nk - 1) / modulus, width = last_step + 3;
  const int64_t classes = std::min(modulus, Nk);
  Coordinates c{.lo = std::vector<int32_t>(query_rows.size(), INT32_MAX),
                .hi = std::vector<int32_t>(query_rows.size(), INT32_MIN),
                .x = std::vector<int32_t>(key_rows.size(), -1)};
  for (size_t s = 0; s < query_rows.size(); ++s) {
    const int64_t p = query_rows[s] + offset, own = Remainder(p, modulus);
    if (query_rows[s] < 0 || own >= classes) continue;
    const int64_t step = FloorDiv(p, modulus), base = own * width;
    c.lo[s] = static_cast<int32_t>(base + std::clamp<int64_t>(step + steps.lo, 0, last_step + 1));
    c.hi[s] = static_cast<int32_t>(base + std::clamp<int64_t>(step + steps.hi, -1, last_step));
  }
  for (size_t s = 0; s < key_rows.size(); ++s) {
    if (key_rows[s] < 0) continue;
    c.x[s] = static_cast<int32_t>(key_rows[s] % modulus * width + key_rows[s] / modulus);
  }
  return Within(std::move(c));
}

}  // namespace attnd
