// Merging by lse as nested loops. T is double for the truth, float for "plain code of the same
// precision"; arrays hold what T computes.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "tests/plain/plain.h"

namespace attnd::testing {

template <class T>
struct PlainMergeOut {
  PlainArray out, lse;
};
using PlainParts = std::vector<PlainMergeOut<double>>;

inline PlainParts ReadParts(const MergeProblem& p) {
  PlainParts parts;
  for (const MergePart& part : p.parts) {
    parts.push_back({ReadView(part.out), ReadLse(part.lse, part.lse_low)});
  }
  return parts;
}

// Row `row` of all: its lse, and the weights of the parts, 0 where they see no key.
template <class T>
T RowWeights(const PlainParts& parts, size_t row, std::vector<T>* weights) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  T max = -kInf, sum = 0;
  for (const auto& part : parts) max = std::fmax(max, static_cast<T>(part.lse.values[row]));
  const T shift = std::isinf(max) ? 0 : max;
  weights->clear();
  for (const auto& part : parts) {
    weights->push_back(std::exp(static_cast<T>(part.lse.values[row]) - shift));
    sum += weights->back();
  }
  for (T& w : *weights) w = sum == 0 ? 0 : w / sum;
  return shift + std::log(sum);
}

template <class T>
PlainMergeOut<T> MergeParts(const PlainParts& parts) {
  PlainMergeOut<T> merged{PlainArray(parts[0].out.shape), PlainArray(parts[0].lse.shape)};
  const auto Dv = static_cast<size_t>(merged.out.shape[merged.out.shape.rank - 1]);
  std::vector<T> weights;
  for (size_t row = 0; row < merged.lse.values.size(); ++row) {
    merged.lse.values[row] = RowWeights<T>(parts, row, &weights);
    for (size_t d = 0; d < Dv; ++d) {
      T sum = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (std::isinf(parts[i].lse.values[row]) && parts[i].lse.values[row] < 0) continue;
        sum += weights[i] * static_cast<T>(parts[i].out.values[row * Dv + d]);
      }
      merged.out.values[row * Dv + d] = sum;
    }
  }
  return merged;
}

// Gradients of the parts; dout, dlse of rank 0: zero.
template <class T>
std::vector<PlainMergeOut<T>> MergePartsGrad(const PlainParts& parts, const PlainArray& dout,
                                             const PlainArray& dlse) {
  const PlainMergeOut<T> merged = MergeParts<T>(parts);
  const auto Dv = static_cast<size_t>(merged.out.shape[merged.out.shape.rank - 1]);
  std::vector<PlainMergeOut<T>> grads;
  for (size_t i = 0; i < parts.size(); ++i) {
    grads.push_back({PlainArray(merged.out.shape), PlainArray(merged.lse.shape)});
  }
  std::vector<T> weights;
  for (size_t row = 0; row < merged.lse.values.size(); ++row) {
    RowWeights<T>(parts, row, &weights);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (std::isinf(parts[i].lse.values[row]) && parts[i].lse.values[row] < 0) continue;
      T flow = dlse.shape.rank == 0 ? 0 : static_cast<T>(dlse.values[row]);
      for (size_t e = row * Dv; e < (row + 1) * Dv && dout.shape.rank != 0; ++e) {
        const T g = static_cast<T>(dout.values[e]);
        flow += g * (static_cast<T>(parts[i].out.values[e]) - static_cast<T>(merged.out.values[e]));
        grads[i].out.values[e] = weights[i] * g;
      }
      grads[i].lse.values[row] = weights[i] * flow;
    }
  }
  return grads;
}

}  // namespace attnd::testing
