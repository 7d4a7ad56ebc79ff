#include "kernels/pattern/shapes/residues.h"

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/predicates/coordinates.h"

namespace attnd {
namespace {

// Class and step of a position. In residue order most positions are the next of their class, which
// saves two divisions.
class Place {
 public:
  explicit Place(int64_t modulus) : modulus_(modulus) {}
  void MoveTo(int64_t position) {
    if (position == position_ + modulus_) {
      ++step_;
    } else {
      step_ = FloorDiv(position, modulus_);
      residue_ = position - step_ * modulus_;
    }
    position_ = position;
  }
  int64_t residue() const { return residue_; }
  int64_t step() const { return step_; }

 private:
  const int64_t modulus_;
  int64_t position_ = 0, residue_ = 0, step_ = 0;
};

}  // namespace

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
  Place at(modulus);
  for (size_t s = 0; s < query_rows.size(); ++s) {
    if (query_rows[s] < 0) continue;
    at.MoveTo(query_rows[s] + offset);
    if (at.residue() >= classes) continue;
    const int64_t base = at.residue() * width;
    c.lo[s] =
        static_cast<int32_t>(base + std::clamp<int64_t>(at.step() + steps.lo, 0, last_step + 1));
    c.hi[s] = static_cast<int32_t>(base + std::clamp<int64_t>(at.step() + steps.hi, -1, last_step));
  }
  for (size_t s = 0; s < key_rows.size(); ++s) {
    if (key_rows[s] < 0) continue;
    at.MoveTo(key_rows[s]);
    c.x[s] = static_cast<int32_t>(at.residue() * width + at.step());
  }
  return Within(std::move(c));
}

}  // namespace attnd
