// Sliding window (Beltagy et al. 2020, section 3.1; Mistral 7B) and block look-around: softmax
// attention over the keys near position p = i + off, off = Nk - Nq or causal_offset[b].
//   token: p - window_left <= j <= p + window_right (-1: no limit)
//   block: floor(p/W) - look_backward <= floor(j/W) <= floor(p/W) + look_forward
// and, if causal, j <= p. Scores, tensors and shapes as in softmax.
#include <algorithm>

#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

enum class Granularity : uint8_t { kToken, kBlock };

struct Options : PatternOptions {
  Granularity granularity = Granularity::kToken;
  std::optional<int64_t> window_left, window_right;  // right unset: as left
  std::optional<int64_t> block;
  int64_t look_backward = 1;
  std::optional<int64_t> look_forward;  // unset: 0 if causal, else 1
};

int64_t UsualLookForward(const Options& o) { return o.causal ? 0 : 1; }

// Wider than any distance between a query and a key, and far from overflow.
constexpr int64_t kWidest = int64_t{1} << 40;

PatternSource TokenWindow(const PatternSeq& seq, const Options& o) {
  const int64_t left = std::min(o.window_left.value(), kWidest);
  const int64_t right = std::min(o.window_right.value_or(left), kWidest);
  const int64_t first = left == -1 ? kUnbounded : seq.offset - left;
  const int64_t last = seq.causal ? seq.offset : right == -1 ? kUnbounded : seq.offset + right;
  return BandSource(seq.Nq, seq.Nk, first, last, seq.lengths);
}

PatternSource BlockWindow(const PatternSeq& seq, const Options& o) {
  const BlockBand band{.block = o.block.value(),
                       .look_backward = o.look_backward,
                       .look_forward = o.look_forward.value_or(UsualLookForward(o)),
                       .offset = seq.offset,
                       .causal = seq.causal};
  return BlockBandSource(seq.Nq, seq.Nk, band, seq.lengths);
}

class Local : public PatternMethod<Options> {
 public:
  Local()
      : PatternMethod(
            {.id = "local",
             .summary = "Sliding window and block look-around",
             .reference = "Beltagy et al. 2020 (arXiv 2004.05150), section 3.1",
             .cost = "2 (D + Dv) FLOPs per visible pair, n W pairs; memory O(n)",
             .has_windows =
                 [](const Options& o) {
                   return o.granularity == Granularity::kBlock || o.window_left != -1 ||
                          o.window_right.value_or(-1) != -1;
                 },
             .options = {
                 EnumOption("granularity", &Options::granularity, {"token", "block"},
                            "whether the window moves by keys or by blocks"),
                 ReadIf(
                     "granularity is token",
                     [](const Options& o) { return o.granularity == Granularity::kToken; },
                     IntOption("window_left", &Options::window_left, {.min = -1},
                               "required when granularity is token",
                               absl::StrCat("keys before p, not counting p; -1: no limit; ",
                                            kPositionHelp))),
                 ReadIf(
                     "granularity is token and causal is false",
                     [](const Options& o) {
                       // 0 and -1 say what causal says.
                       return o.granularity == Granularity::kToken &&
                              (!o.causal || o.window_right.value_or(0) <= 0);
                     },
                     IntOption(
                         "window_right", &Options::window_right, {.min = -1}, "window_left",
                         "keys after p; -1: no limit",
                         [](const Options& o, int64_t) { return o.window_left.value_or(0); })),
                 ReadIf(
                     "granularity is block",
                     [](const Options& o) { return o.granularity == Granularity::kBlock; },
                     IntOption("block", &Options::block, {.min = 1},
                               "required when granularity is block",
                               absl::StrCat("W, in keys; ", kPositionHelp))),
                 ReadIf(
                     "granularity is block",
                     [](const Options& o) { return o.granularity == Granularity::kBlock; },
                     IntOption("look_backward", &Options::look_backward, {.min = 0},
                               "blocks seen before the own one")),
                 ReadIf(
                     "granularity is block and causal is false",
                     [](const Options& o) {
                       return o.granularity == Granularity::kBlock && !o.causal;
                     },
                     IntOption("look_forward", &Options::look_forward, {.min = 0},
                               "0 if causal, else 1", "blocks seen after the own one",
                               [](const Options& o, int64_t) { return UsualLookForward(o); }))}}) {}

 protected:
  void CheckOwn(const ProblemShape&, const Options& o, Reasons* reasons) const override {
    if (o.granularity == Granularity::kToken && !o.window_left.has_value()) {
      reasons->Invalid("window_left is required when granularity is token, got none");
    }
    if (o.granularity == Granularity::kBlock && !o.block.has_value()) {
      reasons->Invalid("block is required when granularity is block, got none");
    }
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers&) const override {
    const bool is_token = o.granularity == Granularity::kToken;
    return AllHeads(is_token ? TokenWindow(seq, o) : BlockWindow(seq, o));
  }
};

}  // namespace

ATTND_METHOD(local, Local)

}  // namespace attnd
