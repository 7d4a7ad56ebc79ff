#include "kernels/engine/self_test_calls.h"

#include <utility>

namespace attnd {
namespace {

OptionValue Named(const char* value) { return OptionValue(std::string(value)); }
OptionValue Whole(int64_t value) { return OptionValue(value); }

constexpr int64_t kB = 2, kH = 2, kD = 40;

// Every primitive.
std::vector<TestCall> PrimitiveCalls() {
  const Shape memory = {kB, kH, 24, kD};
  return {
      {"softmax", {{"causal", true}}},
      {"local", {{"window_left", Whole(9)}, {"causal", true}}},
      {"linear_attention", {{"causal", true}, {"feature_map", Named("softmax")}}},
      {"performer"},
      {"fast_weights"},
      {"fnet"},
      {"nystromformer", {{"num_landmarks", Whole(16)}}, 128, {{"conv_weight", {kH, 3}}}},
      {"sinkhorn", {{"block_size", Whole(16)}, {"sort", Named("topk")}}, 64},
      {"routing"},
      {"reformer", {{"chunk_len", Whole(16)}}, 128},
      {"memory_compressed"},
      {"compressive",
       {{"compression", Named("max")}, {"return_memory", true}, {"mem_len", Whole(24)}},
       75,
       {{"mem_k", memory}, {"mem_v", memory}}},
      {"mlp_mixer", {}, 64},
  };
}

// A device has kernels for rows of 64 columns, of 128 and of more, for scores with terms, and for
// 16-bit rows so many that weights are rounded to them: those serve most large requests.
constexpr int64_t kManyRows = 261;  // above 256; the last tile has five

std::vector<TestCall> AttendCalls() {
  const std::vector<DType> halves = {DType::kF16, DType::kBF16};
  std::vector<TestCall> calls;
  for (const int64_t D : {64, 128}) {
    calls.push_back({.method = "softmax",
                     .options = {{"causal", true}},
                     .D = D,
                     .Hkv = 1,
                     .dtypes = {DType::kF32}});
    calls.push_back({.method = "softmax",
                     .options = {{"causal", true}},
                     .N = kManyRows,
                     .D = D,
                     .Hkv = 1,
                     .dtypes = halves});
    // So many tiles of queries that a block takes two of them.
    calls.push_back({.method = "local",
                     .options = {{"window_left", Whole(9)}, {"causal", true}},
                     .N = kManyRows,
                     .D = D,
                     .B = 26,
                     .H = 4,
                     .Hkv = 1,
                     .dtypes = halves,
                     .has_backward = false});
  }
  const OptionMap terms = {{"alibi", true}, {"logit_softcap", 5.0}};
  calls.push_back(
      {.method = "softmax",
       .options = {{"logit_softcap", 5.0}},
       .tensors = {{"bias", {1, 1, 75, 75}}, {"sink_logits", {kH}}, {"alibi_slopes", {kH}}}});
  calls.push_back({.method = "softmax", .D = 72});
  calls.push_back({.method = "softmax", .options = terms, .D = 72});
  calls.push_back({.method = "softmax", .D = 136});
  calls.push_back({.method = "random",
                   .options = {{"num_random", Whole(5)}, {"duplicates", Named("multiset")}},
                   .tensors = {{"bias", {1, 1, 75, 75}}}});
  // A row's keys are split over blocks.
  calls.push_back({.method = "softmax", .N = 9, .Nk = 1041, .has_backward = false});
  return calls;
}

// Of two segments of 256 positions, the second of which is short.
std::vector<TestCall> ScanCalls() {
  std::vector<TestCall> calls;
  const std::vector<DType> floats = {DType::kF32};
  calls.push_back({.method = "linear_attention",
                   .options = {{"causal", true}},
                   .N = kManyRows,
                   .D = 64,
                   .Hkv = 1});
  calls.push_back({.method = "linear_attention",
                   .options = {{"causal", true}},
                   .N = kManyRows,
                   .D = 128,
                   .Hkv = 1,
                   .dtypes = floats});
  // Keys decay.
  for (const bool normalize : {true, false}) {
    calls.push_back(
        {.method = "linear_attention",
         .options = {{"causal", true}, {"feature_map", Named("exp")}, {"normalize", normalize}},
         .dtypes = floats});
  }
  calls.push_back({.method = "rfa",
                   .options = {{"causal", true}, {"gated", true}, {"num_features", Whole(16)}},
                   .N = kManyRows,
                   .tensors = {{"gate_logits", {kB, kH, kManyRows}}},
                   .dtypes = floats});
  calls.push_back(
      {.method = "fast_weights", .tensors = {{"beta_logits", {kB, kH, 75}}}, .dtypes = floats});
  // A walk over keys, which serves what chunks do not, has a kernel for each power of 2 of D, and
  // of Dv, above 16; another one for the delta rule.
  const auto walk = [&](const char* method, const OptionMap& options, int64_t D, int64_t Dv) {
    calls.push_back(
        {.method = method, .options = options, .N = 7, .D = D, .B = 1, .Dv = Dv, .dtypes = floats});
  };
  const OptionMap delta = {{"feature_map", Named("elu_plus_one")}};
  for (const int64_t D : {20, 40, 100}) walk("fast_weights", delta, D, D);
  walk("linear_attention", {{"causal", true}}, 100, 200);
  for (const int64_t D : {200, 400, 1000, 2000}) {
    walk("fast_weights", delta, D, 8);
    walk("linear_attention", {{"causal", true}}, D, 8);
    walk("linear_attention", {{"causal", true}}, 8, D);
  }
  return calls;
}

}  // namespace

std::vector<TestCall> SelfTestCalls() {
  std::vector<TestCall> calls = PrimitiveCalls();
  for (const auto& more : {AttendCalls(), ScanCalls()}) {
    calls.insert(calls.end(), more.begin(), more.end());
  }
  return calls;
}

}  // namespace attnd
