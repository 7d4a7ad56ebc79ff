// Local attention over an image in raster order (Parmar et al. 2018, section 3.3, "1D local
// attention"): with first(i) = floor(i / query_block) query_block, query i sees
//   causal: first(i) - memory <= j <= i;  else: first(i) - memory <= j < first(i) + query_block +
//   memory
// Scores, tensors and shapes as in softmax; Nq = Nk.
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/grids.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  int64_t query_block = 256;
  std::optional<int64_t> memory;  // unset: query_block
};

class ImageLocal1dMethod : public PatternMethod<Options> {
 public:
  ImageLocal1dMethod()
      : PatternMethod(
            {.id = "image_local_1d",
             .summary = "Query blocks in raster order and the pixels around them",
             .reference = "Parmar et al. 2018 (arXiv 1802.05751), section 3.3, 1D",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (lq + lm) pairs; memory O(n)",
             .unsupported = {.cross = true, .packed = true},
             .options = {IntOption("query_block", &Options::query_block, {.min = 1},
                                   "lq, queries that share keys"),
                         IntOption("memory", &Options::memory, {.min = 0}, "query_block",
                                   "lm, keys before a block and, unless causal, behind it",
                                   [](const Options& o, int64_t) { return o.query_block; })}}) {}

 protected:
  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers&) const override {
    return AllHeads(ImageLocal1d(seq, o.query_block, o.memory.value_or(o.query_block)));
  }
};

}  // namespace

ATTND_METHOD(image_local_1d, ImageLocal1dMethod)

}  // namespace attnd
