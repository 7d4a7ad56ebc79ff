#include "kernels/cuda/attend/device_pattern.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attend/device_tiles.h"
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

struct RowArrays {
  std::vector<TileRun> runs;
  std::vector<int32_t> order;
  int64_t most = 0;  // tiles of a row
  std::array<int64_t, DevicePattern::kMostKeyShares> of_shares = {};

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
      most = std::max(most, tiles[row]);
      of_shares[row % of_shares.size()] += tiles[row];
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

bool DevicePattern::Make(Stream& stream, const Pattern& pattern, const TileRows& by_query_rows,
                         const TileRows& by_key_rows, DeviceTiles* tiles) {
  const RowArrays by_query(by_query_rows), by_key(by_key_rows);
  const std::vector<int32_t> slots = SlotOfRow(pattern.query_rows);

  PatternData& data = on_host_;
  Arrays arrays;
  arrays.Add(std::span<const PatternData>(&data, 1));
  const int64_t at_query_begin = arrays.Add(by_query_rows.begin);
  const int64_t at_query_runs = arrays.Add(by_query.runs);
  const int64_t at_query_order = arrays.Add(by_query.order);
  const int64_t at_key_begin = arrays.Add(by_key_rows.begin);
  const int64_t at_key_runs = arrays.Add(by_key.runs);
  const int64_t at_key_order = arrays.Add(by_key.order);
  const int64_t at_terms = arrays.Add(tiles->terms());
  const int64_t at_query_rows = arrays.Add(pattern.query_rows);
  const int64_t at_key_rows = arrays.Add(pattern.key_rows);
  const int64_t at_key_bias = arrays.Add(pattern.key_bias);
  const int64_t at_slots = arrays.Add(slots);
  const int64_t at_keys_begin = arrays.Add(pattern.keys_of.begin);
  const int64_t at_keys = arrays.Add(pattern.keys_of.columns);
  const int64_t at_queries_begin = arrays.Add(pattern.queries_of.begin);
  const int64_t at_queries = arrays.Add(pattern.queries_of.columns);

  auto* memory = static_cast<std::byte*>(tiles->Allocate(arrays.bytes()));
  if (memory == nullptr) return false;
  const std::byte* base = memory;
  const auto place = [&]<class T>(int64_t at, const T** pointer) {
    *pointer = at < 0 ? nullptr : reinterpret_cast<const T*>(base + at);
  };
  data = {.Nq = pattern.Nq, .Nk = pattern.Nk};
  data.by_query.rows = by_query_rows.rows();
  place(at_query_begin, &data.by_query.begin);
  place(at_query_runs, &data.by_query.runs);
  place(at_query_order, &data.by_query.order);
  data.by_key.rows = by_key_rows.rows();
  place(at_key_begin, &data.by_key.begin);
  place(at_key_runs, &data.by_key.runs);
  place(at_key_order, &data.by_key.order);
  data.masks = tiles->masks();
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
  if (!stream.device().Upload(stream, memory, arrays.pieces(), nullptr).ok()) return false;
  place(0, &data_);
  buffers_ = tiles->buffers();
  made_by_ = stream.queue()->progress();
  most_of_query_ = by_query.most, most_of_key_ = by_key.most;
  of_key_shares_ = by_key.of_shares;
  has_terms_ = !tiles->terms().empty() || !pattern.key_bias.empty();
  return true;
}

std::shared_ptr<const DevicePattern> DevicePattern::Of(Stream& stream, const Pattern& pattern) {
  const auto make = [&]() -> std::shared_ptr<const DevicePattern> {
    // About as many bytes as the pattern has.
    DeviceTiles tiles(stream, DeviceTiles::Memory::kDevice, /*most_bytes=*/INT64_MAX);
    auto copy = std::make_shared<DevicePattern>();
    const bool is_made = tiles.Take(pattern, 0) && tiles.Flush() &&
                         copy->Make(stream, pattern, pattern.by_query, pattern.by_key, &tiles);
    return is_made ? copy : nullptr;
  };
  return std::static_pointer_cast<const DevicePattern>(pattern.copies->Of(stream, make));
}

int64_t DevicePattern::MostOfKeyShare(int shares) const {
  if (shares < kMostKeyShares) {
    return std::accumulate(of_key_shares_.begin(), of_key_shares_.end(), int64_t{0});
  }
  return *std::max_element(of_key_shares_.begin(), of_key_shares_.end());
}

int64_t DevicePattern::bytes() const {
  int64_t bytes = 0;
  for (const auto& buffer : buffers_) bytes += buffer->bytes();
  return bytes;
}

void DevicePattern::Hold(Stream& stream, std::shared_ptr<const DevicePattern> copy) {
  // The pool keeps the memory for the queue that it was allocated for.
  CudaQueue& queue = QueueOf(stream);
  if (copy != nullptr && copy->made_by_ != queue.progress()) queue.Hold(std::move(copy));
}

DevicePattern::Cost DevicePattern::CostOf(int64_t tiles, int64_t patterns, int64_t term_bytes) {
  // Runs of both directions, at worst one a tile; on the host twice each, in a vector that grew.
  constexpr int64_t kRuns = 2 * sizeof(TileRun), kHostRuns = kRuns + 4 * sizeof(Run);
  Cost cost = DeviceTiles::CostOf(tiles, patterns, TermBytes(term_bytes));
  cost.device_bytes += kRuns * tiles;
  cost.host_bytes += kHostRuns * tiles;
  return cost;
}

int64_t DevicePattern::MostTiles(int64_t device_bytes, int64_t term_bytes) {
  const auto bytes = [&](int64_t tiles) { return CostOf(tiles, 1, term_bytes).device_bytes; };
  return device_bytes < bytes(1) ? 0 : 1 + (device_bytes - bytes(1)) / (bytes(2) - bytes(1));
}

int64_t DevicePattern::MostBytes(const Device& device) { return device.info().memory_bytes / 16; }

DeviceStatus DevicePattern::TooLarge(const Device& device, int64_t counted) {
  const int64_t most = MostBytes(device);
  return {DeviceStatus::Code::kTooLarge,
          device.info().name + ": tiles of the patterns of a request must take at most " +
              std::to_string(most) + " bytes there, got at least " +
              std::to_string(std::max(counted, most + 1)) +
              "; \"cpu\", where a server has it, has no such limit"};
}

int64_t DevicePattern::LeastBytes(const StoredTiles& tiles, int64_t term_bytes) {
  return CostOf(std::max(tiles.computed_masks(), tiles.computed_terms()), 1,
                tiles.computed_terms() > 0 ? term_bytes : 0)
      .device_bytes;
}

std::shared_ptr<const DevicePattern> DevicePattern::Computed(Stream& stream, const Pattern& pattern,
                                                             StoredTiles* tiles, int64_t term_bytes,
                                                             bool has_keys, int64_t most_bytes,
                                                             DeviceStatus* status) {
  DeviceTiles store(stream, DeviceTiles::Memory::kWorkspace, most_bytes);
  auto copy = std::make_shared<DevicePattern>();
  const bool is_computed =
      store.Take(pattern, tiles->computed_masks()) && tiles->Compute(&store) && store.Flush();
  // Runs of keys may be more than those of queries, as many as there are tiles.
  const bool is_whole =
      is_computed && (!has_keys || tiles->Transpose(MostTiles(most_bytes, term_bytes)));
  if (is_whole && copy->Make(stream, pattern, tiles->by_query(), tiles->by_key(), &store)) {
    copy->computed_pairs_ = tiles->computed_pairs();
    copy->computed_bytes_ = std::max(LeastBytes(*tiles, term_bytes), store.bytes());
    return copy;
  }
  const bool is_too_large = store.is_too_large() || (is_computed && !is_whole);
  if (stream.stopped()) {
    *status = {DeviceStatus::Code::kStopped, "run: stopped"};
  } else if (is_too_large) {
    *status = TooLarge(stream.device(), MostBytes(stream.device()) - most_bytes + store.bytes());
  } else {
    *status = {DeviceStatus::Code::kNoMemory, "cuda: no memory for a pattern"};
  }
  return nullptr;
}

}  // namespace attnd::cuda
