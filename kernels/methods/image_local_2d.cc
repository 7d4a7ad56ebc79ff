// Local attention over an image in two dimensions (Parmar et al. 2018, section 3.3, "2D local
// attention"): cells of a grid h x w in row-major order; query (y, x) lies in the block that begins
// at (by, bx) and sees
//   not causal: by - mh <= v < by + qh + mh and bx - mw <= u < bx + qw + mw
//   causal: those of these rows above the block, those of its rows to the left, and the pixels of
//           the block itself up to (y, x): causal in block-raster order, not in raster order.
// Scores, tensors and shapes as in softmax; Nq = Nk = h w.
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/grids.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  std::vector<int64_t> grid, query_shape = {8, 16}, memory_flange = {8, 16};
};

ImageBlocks BlocksOf(const Options& o) {
  return {.height = o.grid[0],
          .width = o.grid[1],
          .block_height = o.query_shape[0],
          .block_width = o.query_shape[1],
          .flange_height = o.memory_flange[0],
          .flange_width = o.memory_flange[1]};
}

class ImageLocal2dMethod : public PatternMethod<Options> {
 public:
  ImageLocal2dMethod()
      : PatternMethod(
            {.id = "image_local_2d",
             .summary = "Rectangular query blocks and the pixels around them",
             .reference = "Parmar et al. 2018 (arXiv 1802.05751), section 3.3, 2D",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (qh + 2 mh) (qw + 2 mw) pairs; memory "
                     "O(n)",
             .unsupported = {.alibi = true, .cross = true, .packed = true},
             .options = {IntsOption("grid", &Options::grid, {.min = 1, .count = 2}, "required",
                                    "height and width; their product is N"),
                         IntsOption("query_shape", &Options::query_shape, {.min = 1, .count = 2},
                                    "height and width of a block of queries"),
                         IntsOption("memory_flange", &Options::memory_flange,
                                    {.min = 0, .count = 2},
                                    "rows and columns around a block that it sees")},
             .causal = "what a query sees comes before it in the raster of blocks, and of pixels "
                       "in its own block"}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    if (o.grid.empty() || o.grid.size() == 2) CheckGrid(problem, o.grid, reasons);
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers&) const override {
    return AllHeads(ImageLocal2d(seq, BlocksOf(o)));
  }
};

}  // namespace

ATTND_METHOD(image_local_2d, ImageLocal2dMethod)

}  // namespace attnd
