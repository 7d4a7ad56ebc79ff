// Attention as a finalized graph of the stand-in for cuDNN says it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cudnn_node.h"

namespace emu {

using Nodes = std::vector<std::shared_ptr<const Node>>;

// A tensor of device memory.
struct DnnTensor {
  int64_t uid = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t alignment = 1;
  std::vector<int64_t> dims, strides;  // four
  void* data = nullptr;

  size_t bytes() const;
  float Load(int64_t h, int64_t n, int64_t d) const;
  void Store(int64_t h, int64_t n, int64_t d, float value) const;
};
DnnTensor TensorOf(const Node& node);

// One that a call gives by value.
struct DnnNumber {
  int64_t uid = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  double value = 0;
};
// REQUIRES: IsNumber(node)
DnnNumber NumberOf(const Node& node);

// Of scores: column + bound > row stays at the left, column <= row + bound at the right.
struct DnnMask {
  bool is_left = false;
  DnnNumber bound, hidden;
};

// One call. Sums of values are float32, of blocks of keys whose width depends on the shape: a
// caller that lets the shape depend on the batch gets other bits, as on a device.
struct DnnAttention {
  bool is_gradient = false;
  DnnTensor q, k, v, out, lse;
  DnnTensor dout, dq, dk, dv, shift, dq_sums;  // of a gradient
  DnnNumber scale;
  DnnNumber one;  // of a gradient
  std::vector<DnnMask> masks;
  bool splits = false;  // into blocks of other widths
  bool is_wrong = false;
  bool spreads = false;  // Cudnn::kSpreads

  void Run() const;
  void RunGradient() const;
  // All that a call must give, with what to call it.
  std::vector<std::pair<const char*, DnnTensor*>> Tensors();
  // Those that row i sees are [first, second).
  std::pair<int64_t, int64_t> KeysOf(int64_t i) const;
};

// Null: the graph is none that the stand-in computes.
std::unique_ptr<DnnAttention> AttentionOf(const Node& graph);
// Fills in the data. False: something is missing, or too much.
bool Bind(const std::map<int64_t, void*>& data, DnnAttention* attention);
// Of its shape.
uint64_t HashOf(const DnnAttention& attention);

}  // namespace emu
