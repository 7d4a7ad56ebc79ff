// Attention as a finalized graph of the stand-in for cuDNN says it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cudnn_node.h"

namespace emu {

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

// One call. Sums of values are float32, of blocks of keys whose width depends on the shape: a
// caller that lets the shape depend on the batch gets other bits, as on a device.
struct DnnAttention {
  DnnTensor q, k, v, out, lse;
  float scale = 1;
  bool is_bounded_before = false, is_bounded_after = false;
  double before = 0, after = 0;  // column + before > row; column <= row + after
  bool splits = false;           // into blocks of other widths
  bool is_wrong = false;
  bool spreads = false;  // Cudnn::kSpreads

  void Run() const;
};

// Null: the graph is none that the stand-in computes.
std::unique_ptr<DnnAttention> AttentionOf(const Node& graph);
// Fills in the data. False: something is missing, or too much.
bool Bind(const Node& graph, const std::map<int64_t, void*>& data, DnnAttention* attention);
// Of its shape.
uint64_t HashOf(const DnnAttention& attention);

}  // namespace emu
