// Options and tensors of memory_compressed, and the sizes that follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/method/method.h"

namespace attnd {

enum class CompressedLayer : uint8_t { kMemory, kLocal };
enum class CellPad : uint8_t { kLeft, kRight, kDrop };
enum class CellRule : uint8_t { kInclusive, kStrict };

struct MemoryCompressedOptions {
  CompressedLayer layer = CompressedLayer::kMemory;
  std::optional<int64_t> factor;  // unset: that of conv_wk or conv_wv, else kFactor
  int64_t block = 256;
  CellPad pad = CellPad::kLeft;
  CellRule rule = CellRule::kInclusive;
  bool null = true, first_key = false, share_conv = false;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  uint64_t seed = 0;

  bool IsLocal() const { return layer == CompressedLayer::kLocal; }
  bool HasNull() const { return !IsLocal() && null && !first_key; }
};

std::vector<OptionSpec<MemoryCompressedOptions>> MemoryCompressedLines();

// Weights, biases and the null key of keys and of values.
struct ConvNames {
  bool is_of_keys;
  const char *weight, *weight_shape, *bias, *bias_shape, *null, *null_shape;
};
constexpr ConvNames kConvOfKeys = {true,      "conv_wk", "[Hkv,D,D,f]", "conv_bk",
                                   "[Hkv,D]", "null_k",  "[H,D]"};
constexpr ConvNames kConvOfValues = {false,      "conv_wv", "[Hkv,Dv,Dv,f]", "conv_bv",
                                     "[Hkv,Dv]", "null_v",  "[H,Dv]"};

std::vector<TensorInfo> MemoryCompressedInputs();

// f: that of a weight that was sent, else the option. >= 1; a refused one is 1.
int64_t FactorOf(const ProblemShape& p, const MemoryCompressedOptions& o);

// How n keys become cells of f rows.
struct CellRows {
  int64_t cells = 0, front = 0;  // front: rows of zeros before the keys
};
CellRows CellsOf(int64_t n, int64_t f, CellPad pad);

void CheckMemoryCompressed(const ProblemShape& p, const MemoryCompressedOptions& o,
                           Reasons* reasons);

}  // namespace attnd
