// Random mixing (Lee-Thorp et al. 2021, section 4): linear mixing with matrices that are random
// and constant, LeCun normals where they are not sent.
#include <cmath>

#include "kernels/method/method.h"
#include "kernels/methods/mixing/dense.h"

namespace attnd {
namespace {

class RandomMixing final : public DenseMixing {
 public:
  RandomMixing()
      : DenseMixing({.id = "random_mixing",
                     .summary = "Random constant matrices over positions and channels",
                     .reference = "Lee-Thorp et al. 2021 (arXiv 2105.03824), section 4, Random"},
                    /*learned=*/false) {}

 private:
  DrawParams Drawn(double fan_in) const override {
    return {.distribution = Distribution::kTruncatedNormal, .deviation = std::sqrt(1 / fan_in)};
  }
};

}  // namespace

ATTND_METHOD(random_mixing, RandomMixing)

}  // namespace attnd
