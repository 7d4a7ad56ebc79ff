// Linear mixing (Lee-Thorp et al. 2021, section 4 and appendix): a learned matrix over positions
// and one over channels, applied to all rows of v.
#include "kernels/method/method.h"
#include "kernels/methods/mixing/dense.h"

namespace attnd {
namespace {

class LinearMixing final : public DenseMixing {
 public:
  LinearMixing()
      : DenseMixing({.id = "linear_mixing",
                     .summary = "Learned matrices over positions and channels",
                     .reference = "Lee-Thorp et al. 2021 (arXiv 2105.03824), section 4, Linear"},
                    /*learned=*/true) {}

 private:
  DrawParams Drawn(double) const override {
    return {.distribution = Distribution::kNormal, .deviation = 0.02};
  }
};

}  // namespace

ATTND_METHOD(linear_mixing, LinearMixing)

}  // namespace attnd
