#include "kernels/cuda/attend/device_pattern.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/attend/stored_tiles.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/device/device_copies.h"

namespace attnd::cuda {
namespace {

constexpr int64_t kAlign = 64;

// Arrays one behind the other, each at a multiple of kAlign.
class Arrays {
 public:
  template <class T>
  int64_t Add(std::span<const T> values) {
    const int64_t at = bytes_;
    pieces_.push_back(std::as_bytes(values));
    bytes_ += static_cast<int64_t>(values.size_bytes());
    const int64_t gap = (kAlign - bytes_ % kAlign) % kAlign;
    static constexpr std::byte kGap[kAlign] = {};
    pieces_.push_back({kGap, static_cast<size_t>(gap)});
    bytes_ += gap;
    return at;
  }
  template <class T>
  int64_t Add(const std::vector<T>& values) {
    return values.empty() ? -1 : Add(std::span<const T>(values));
  }
  int64_t bytes() const { return bytes_; }
  const std::vector<std::span<const std::byte>>& pieces() const { return pieces_; }

 private:
  std::vector<std::span<const std::byte>> pieces_;
  int64_t bytes_ = 0;
};

// Bit k of word q from bit q of word k (Hacker's Delight, section 7-3).
void Transpose(const TileMask& mask, uint64_t* words) {
  std::copy(mask.begin(), mask.end(), words);
  uint64_t keep = 0x00000000ffffffffull;
  for (int64_t step = 32; step > 0; step /= 2, keep ^= keep << step) {
    for (int64_t k = 0; k < kTile; k = (k + step + 1) & ~step) {
      const uint64_t swapped = ((words[k] >> step) ^ words[k + step]) & keep;
      words[k] ^= swapped << step;
      words[k + step] ^= swapped;
    }
  }
}

template <class T>
void TransposeTile(const std::vector<T>& by_key, T* by_query) {
  for (int64_t k = 0; k < kTile; ++k) {
    for (int64_t q = 0; q < kTile; ++q) by_query[q * kTile + k] = by_key[k * kTile + q];
  }
}

struct RowArrays {
  std::vector<TileRun> runs;
  std::vector<int32_t> order;
  int64_t longest = 0;

  explicit RowArrays(const TileRows& rows) {
    const auto count = static_cast<size_t>(rows.rows());
    std::vector<int64_t> tiles(count, 0);
    runs.reserve(rows.runs.size());
    for (size_t row = 0; row < count; ++row) {
      for (int64_t r = rows.begin[row]; r < rows.begin[row + 1]; ++r) {
        const Run& run = rows.runs[r];
        runs.push_back(
            {run.first, run.count, run.mask, run.terms, static_cast<int32_t>(tiles[row])});
        tiles[row] += run.count;
      }
      longest = std::max(longest, tiles[row]);
    }
    order.resize(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return tiles[a] > tiles[b]; });
  }
};

std::vector<int32_t> SlotOfRow(const std::vector<int32_t>& rows) {
  std::vector<int32_t> slots;
  if (rows.empty()) return slots;
  slots.resize(static_cast<size_t>(std::max(0, 1 + *std::max_element(rows.begin(), rows.end()))),
               -1);
  for (size_t slot = 0; slot < rows.size(); ++slot) {
    if (rows[slot] >= 0) slots[rows[slot]] = static_cast<int32_t>(slot);
  }
  return slots;
}

}  // namespace

std::shared_ptr<const DevicePattern> DevicePattern::New(Stream& stream, const Pattern& pattern) {
  const StoredTiles tiles(pattern, stream);
  if (stream.stopped()) return nullptr;
  const RowArrays by_query(tiles.by_query()), by_key(tiles.by_key());
  std::vector<uint64_t> masks(tiles.masks().size() * kTile);
  for (size_t n = 0; n < tiles.masks().size(); ++n) Transpose(tiles.masks()[n], &masks[n * kTile]);
  std::vector<float> bias;
  std::vector<uint16_t> labels;
  struct Places {
    int64_t bias = -1, labels = -1;
  };
  std::vector<Places> places;
  constexpr size_t kPairs = kTile * kTile;
  for (const TileTerms& terms : tiles.terms()) {
    Places place;
    if (!terms.bias.empty()) {
      place.bias = static_cast<int64_t>(bias.size());
      bias.resize(bias.size() + kPairs);
      TransposeTile(terms.bias, &bias[place.bias]);
    }
    if (!terms.labels.empty()) {
      place.labels = static_cast<int64_t>(labels.size());
      labels.resize(labels.size() + kPairs);
      TransposeTile(terms.labels, &labels[place.labels]);
    }
    places.push_back(place);
  }
  const std::vector<int32_t> slots = SlotOfRow(pattern.query_rows);

  auto copy = std::make_shared<DevicePattern>();
  PatternData& data = copy->on_host_;
  std::vector<TermsData> terms(places.size());
  Arrays arrays;
  arrays.Add(std::span<const PatternData>(&data, 1));
  const int64_t at_query_begin = arrays.Add(tiles.by_query().begin);
  const int64_t at_query_runs = arrays.Add(by_query.runs);
  const int64_t at_query_order = arrays.Add(by_query.order);
  const int64_t at_key_begin = arrays.Add(tiles.by_key().begin);
  const int64_t at_key_runs = arrays.Add(by_key.runs);
  const int64_t at_key_order = arrays.Add(by_key.order);
  const int64_t at_masks = arrays.Add(masks), at_terms = arrays.Add(terms);
  const int64_t at_bias = arrays.Add(bias), at_labels = arrays.Add(labels);
  const int64_t at_query_rows = arrays.Add(pattern.query_rows);
  const int64_t at_key_rows = arrays.Add(pattern.key_rows);
  const int64_t at_key_bias = arrays.Add(pattern.key_bias);
  const int64_t at_slots = arrays.Add(slots);
  const int64_t at_keys_begin = arrays.Add(pattern.keys_of.begin);
  const int64_t at_keys = arrays.Add(pattern.keys_of.columns);
  const int64_t at_queries_begin = arrays.Add(pattern.queries_of.begin);
  const int64_t at_queries = arrays.Add(pattern.queries_of.columns);

  copy->buffer_ = stream.device().memory().Allocate(arrays.bytes(), stream.queue());
  if (copy->buffer_ == nullptr) return nullptr;
  const auto* base = static_cast<const std::byte*>(copy->buffer_->data());
  const auto place = [&]<class T>(int64_t at, const T** pointer) {
    *pointer = at < 0 ? nullptr : reinterpret_cast<const T*>(base + at);
  };
  data = {.Nq = pattern.Nq, .Nk = pattern.Nk};
  data.by_query.rows = tiles.by_query().rows();
  place(at_query_begin, &data.by_query.begin);
  place(at_query_runs, &data.by_query.runs);
  place(at_query_order, &data.by_query.order);
  data.by_key.rows = tiles.by_key().rows();
  place(at_key_begin, &data.by_key.begin);
  place(at_key_runs, &data.by_key.runs);
  place(at_key_order, &data.by_key.order);
  place(at_masks, &data.masks);
  place(at_terms, &data.terms);
  place(at_query_rows, &data.query_rows);
  place(at_key_rows, &data.key_rows);
  place(at_key_bias, &data.key_bias);
  place(at_slots, &data.slot_of_query);
  data.placed_rows = static_cast<int64_t>(slots.size());
  place(at_keys_begin, &data.keys_begin);
  place(at_keys, &data.keys);
  place(at_queries_begin, &data.queries_begin);
  place(at_queries, &data.queries);
  for (size_t n = 0; n < terms.size(); ++n) {
    terms[n] = {};
    if (places[n].bias >= 0) place(at_bias + 4 * places[n].bias, &terms[n].bias);
    if (places[n].labels >= 0) place(at_labels + 2 * places[n].labels, &terms[n].labels);
  }
  if (!stream.device().Upload(stream, copy->buffer_->data(), arrays.pieces(), nullptr).ok()) {
    return nullptr;
  }
  place(0, &copy->data_);
  copy->made_by_ = stream.queue()->progress();
  copy->longest_[0] = by_query.longest;
  copy->longest_[1] = by_key.longest;
  copy->has_terms_ = !terms.empty() || !pattern.key_bias.empty();
  copy->computed_pairs_ = tiles.computed_pairs();
  return copy;
}

std::shared_ptr<const DevicePattern> DevicePattern::Of(Stream& stream, const Pattern& pattern) {
  return std::static_pointer_cast<const DevicePattern>(
      pattern.copies->Of(stream, [&] { return New(stream, pattern); }));
}

void DevicePattern::Hold(Stream& stream, std::shared_ptr<const DevicePattern> copy) {
  // The pool keeps the memory for the queue that it was allocated for.
  CudaQueue& queue = QueueOf(stream);
  if (copy != nullptr && copy->made_by_ != queue.progress()) queue.Hold(std::move(copy));
}

int64_t DevicePattern::ComputedPairs(const Pattern& pattern, int64_t nq, int64_t nk) const {
  if (computed_pairs_ == 0) return 0;
  const bool cuts_queries = pattern.query_rows.empty() && nq < pattern.Nq;
  const bool cuts_keys = pattern.key_rows.empty() && nk < pattern.Nk;
  if (!cuts_queries && !cuts_keys) return computed_pairs_;
  return CountComputedPairs(pattern, cuts_queries ? nq : pattern.Nq, cuts_keys ? nk : pattern.Nk);
}

}  // namespace attnd::cuda
