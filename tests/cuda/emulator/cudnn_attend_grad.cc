// The gradient of attention of the stand-in for cuDNN, a row of queries at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cudnn_attend.h"
#include "cudnn_sums.h"

namespace emu {
namespace {

using Floats = std::vector<float>;

// Of one head, rows one after another or (by_columns) columns.
Floats LoadHead(const DnnTensor& tensor, int64_t h, bool by_columns) {
  const int64_t N = tensor.dims[2], D = tensor.dims[3];
  Floats numbers(static_cast<size_t>(N * D));
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t d = 0; d < D; ++d) {
      numbers[static_cast<size_t>(by_columns ? d * N + n : n * D + d)] = tensor.Load(h, n, d);
    }
  }
  return numbers;
}

void StoreHead(const Floats& numbers, int64_t h, const DnnTensor& tensor) {
  const int64_t N = tensor.dims[2], D = tensor.dims[3];
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t d = 0; d < D; ++d) {
      tensor.Store(h, n, d, numbers[static_cast<size_t>(n * D + d)]);
    }
  }
}

// Of row i with the keys [begin, end) of [D][Nk].
void Multiply(const float* row, int64_t D, const Floats& columns, int64_t Nk, int64_t begin,
              int64_t end, Floats* products) {
  std::fill(products->begin() + begin, products->begin() + end, 0.0f);
  for (int64_t d = 0; d < D; ++d) {
    AddTo(static_cast<size_t>(end - begin), row[d], columns.data() + d * Nk + begin,
          products->data() + begin);
  }
}

}  // namespace

void DnnAttention::RunGradient() const {
  constexpr int64_t kTile = 128;  // of which engines multiply all keys
  const int64_t H = q.dims[1], Nq = q.dims[2], Nk = k.dims[2], D = q.dims[3], Dv = v.dims[3];
  Floats products(static_cast<size_t>(Nk)), dout_products(static_cast<size_t>(Nk));
  for (int64_t h = 0; h < H; ++h) {
    const Floats queries = LoadHead(q, h, false), keys = LoadHead(k, h, false),
                 douts = LoadHead(dout, h, false), outs = LoadHead(out, h, false),
                 key_columns = LoadHead(k, h, true), value_columns = LoadHead(v, h, true);
    Floats of_q(queries.size()), of_k(keys.size()), of_v(value_columns.size());
    for (int64_t i = 0; i < Nq; ++i) {
      const auto [begin, end] = KeysOf(i);
      const int64_t first = spreads ? begin / kTile * kTile : begin;
      const int64_t next = spreads ? std::min((end + kTile - 1) / kTile * kTile, Nk) : end;
      const float *row = queries.data() + i * D, *dout_row = douts.data() + i * Dv;
      float of_row = 0;
      for (int64_t d = 0; d < Dv; ++d)
        of_row += dout_row[d] * outs[static_cast<size_t>(i * Dv + d)];
      shift.Store(h, i, 0, of_row);
      Multiply(row, D, key_columns, Nk, first, next, &products);
      Multiply(dout_row, Dv, value_columns, Nk, first, next, &dout_products);
      const float lse_of_row = static_cast<const float*>(lse.data)[h * lse.strides[1] + i];
      for (int64_t n = first; n < next; ++n) {
        // Another order, another sum.
        const int64_t j = splits ? first + next - 1 - n : n;
        const auto at = static_cast<size_t>(j);
        const auto factor = static_cast<float>(scale.value);
        const bool is_visible = begin <= j && j < end;
        const float weight = is_visible ? std::exp(products[at] * factor - lse_of_row) : 0.0f;
        const float dscore = weight * (dout_products[at] - of_row) * factor;
        AddTo(static_cast<size_t>(Dv), weight, dout_row, of_v.data() + j * Dv);
        AddTo(static_cast<size_t>(D), dscore, row, of_k.data() + j * D);
        AddTo(static_cast<size_t>(D), dscore, keys.data() + j * D, of_q.data() + i * D);
      }
    }
    StoreHead(of_q, h, dq_sums);
    if (is_wrong && h == H - 1) of_q[static_cast<size_t>(Nq / 2 * D + D - 1)] += 1;
    StoreHead(of_q, h, dq);
    StoreHead(of_k, h, dk);
    StoreHead(of_v, h, dv);
  }
}

}  // namespace emu
