#include "kernels/pattern/shapes/reformer_tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

namespace attnd {
namespace {

// A number for each query or key of a tile.
template <class Lane>
using Lanes = std::array<Lane, kTile>;

// Bit i: lane i is not 0.
template <class Lane>
uint64_t BitsOf(const Lanes<Lane>& lanes) {
  static_assert(std::endian::native == std::endian::little);
  uint8_t bytes[kTile];
  for (int64_t i = 0; i < kTile; ++i) bytes[i] = lanes[i] != 0 ? 1 : 0;
  uint64_t bits = 0;
  for (int64_t i = 0; i < kTile; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes + i, sizeof(eight));
    // Moves the lowest bit of byte b to bit 56 + b.
    bits |= eight * 0x0102040810204080 >> 56 << i;
  }
  return bits;
}

// Lanes by the numbers at which they are found, modulo kNumbers.
class Marks {
 public:
  static constexpr int64_t kNumbers = 256;  // 2 KB, cleared for each use

  // At `width` + 1 numbers from `first` on.
  void Add(uint64_t first, int64_t width, int64_t lane) {
    for (int64_t i = 0; i <= width; ++i) {
      lanes_[(first + static_cast<uint64_t>(i)) % kNumbers] |= uint64_t{1} << lane;
    }
  }
  uint64_t At(uint64_t number) const { return lanes_[number % kNumbers]; }

 private:
  std::array<uint64_t, kNumbers> lanes_{};
};

// Rows and chunks of a tile in numbers of 16 bits where they suffice.
template <class Lane>
class TileOfRound {
 public:
  TileOfRound(const ReformerHead& head, const ReformerPlaces<Lane>& places, int64_t round)
      : r_(head.rounds()),
        places_(places),
        C_(head.chunks()),
        width_(r_.hi - r_.lo),
        round_(round) {}

  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) {
    q_first_ = q_tile * kTile;
    ListQueries();
    ListKeys(key_tile * kTile, mask);
    if (r_.causal || far_keys_ != 0) HideLater(mask);
    if (!r_.across) HideOtherBuckets(mask);
    uint64_t keys = KeysIn(*mask);
    for (int64_t round = 0; r_.unique && round < round_ && keys != 0; ++round) {
      HideRound(round, keys, mask);
      keys = KeysIn(*mask);
    }
    // A round shows a row twice where the chunks of another round wrap into it.
    const bool repeats = r_.unique && r_.across && r_.flat && r_.rounds > 1;
    if (repeats && (keys & far_keys_) != 0) HideRound(round_, keys & far_keys_, mask);
  }

 private:
  static constexpr Lane kYes = static_cast<Lane>(~Lane{0});
  static constexpr int64_t kMostMarked = 64;  // wider windows are compared

  int32_t RowAt(int64_t round, int64_t slot) const {
    return slot < r_.n ? r_.order[round * r_.n + slot] : -1;
  }

  void ListQueries() {
    for (int64_t q = 0; q < kTile; ++q) {
      q_rows_[q] = RowAt(round_, q_first_ + q);
      const bool is_valid = q_rows_[q] >= 0 && q_rows_[q] < r_.queries;
      queries_ |= uint64_t{is_valid} << q;
    }
  }

  // Their rows, and the queries whose windows hold them.
  void ListKeys(int64_t first, TileMask* mask) {
    int64_t number = first / r_.chunk, in_chunk = first % r_.chunk;
    int64_t segment = 0, round = 0, chunk = 0;
    uint64_t window = 0;
    for (int64_t k = 0; k < kTile; ++k, ++in_chunk) {
      if (in_chunk == r_.chunk) ++number, in_chunk = 0;
      if (k == 0 || in_chunk == 0) {
        segment = FloorDiv(number + r_.lo, C_);
        round = r_.flat ? Remainder(round_ + segment, r_.rounds) : round_;
        chunk = number + r_.lo - segment * C_;
        const bool is_seen = number < C_ + width_ && (r_.across || round == round_);
        window = is_seen ? queries_ & BitsBetween((number - width_) * r_.chunk - q_first_,
                                                  (number + 1) * r_.chunk - q_first_)
                         : 0;
      }
      const int64_t slot = chunk * r_.chunk + in_chunk, own = slot - q_first_;
      k_rows_[k] = window == 0 ? -1 : RowAt(round, slot);
      segments_[k] = segment;
      uint64_t& seen = (*mask)[k];
      seen = k_rows_[k] < 0 ? 0 : seen & window;
      // In its own round a token stands in the slot of its query.
      if (round == round_ && own >= 0 && own < kTile) seen &= ~(uint64_t{1} << own);
      if (segment != 0) far_keys_ |= uint64_t{seen != 0} << k;
    }
  }

  static uint64_t KeysIn(const TileMask& mask) {
    uint64_t keys = 0;
    for (int64_t k = 0; k < kTile; ++k) keys |= uint64_t{mask[k] != 0} << k;
    return keys;
  }

  // The token itself, and with `causal` what is later: rows ascend within a chunk.
  void HideLater(TileMask* mask) {
    int64_t in_chunk = q_first_ % r_.chunk;
    for (int64_t begin = 0; begin < kTile;) {
      const int64_t end = std::min(begin + r_.chunk - in_chunk, kTile);
      int64_t at = begin;  // the first query that is not earlier than the key
      int32_t last = 0;
      for (int64_t k = 0; k < kTile; ++k) {
        const int32_t row = k_rows_[k];
        if (row < last) at = begin;
        last = row;
        while (at < end && q_rows_[at] < row) ++at;
        const int64_t own = at < end && q_rows_[at] == row ? 1 : 0;
        (*mask)[k] &= ~(LowBits(at + own) & ~LowBits(r_.causal ? begin : at));
      }
      begin = end;
      in_chunk = 0;
    }
  }

  void HideOtherBuckets(TileMask* mask) {
    const Lanes<Lane> queries = Of(places_.bucket, round_, q_rows_);
    const Lanes<Lane> keys = Of(places_.bucket, round_, k_rows_);
    for (int64_t k = 0; k < kTile; ++k) {
      if ((*mask)[k] != 0) (*mask)[k] &= EqualTo(keys[k], queries);
    }
  }
  static uint64_t EqualTo(Lane number, const Lanes<Lane>& lanes) {
    Lanes<Lane> equal;
    for (int64_t i = 0; i < kTile; ++i) equal[i] = lanes[i] == number ? kYes : 0;
    return BitsOf(equal);
  }

  // Chunks of the keys in a round.
  const Lanes<Lane>& KeyChunks(int64_t round) {
    Lanes<Lane>& chunks = k_chunks_[round];
    if ((listed_ >> round & 1) != 0) return chunks;
    listed_ |= uint64_t{1} << round;
    chunks = Of(places_.chunk, round, k_rows_);
    return chunks;
  }
  Lanes<Lane> Of(const std::vector<Lane>& numbers, int64_t round, const Lanes<int32_t>& rows) {
    Lanes<Lane> found;
    const Lane* own = numbers.data() + round * r_.n;
    for (int64_t i = 0; i < kTile; ++i) found[i] = rows[i] < 0 ? Lane{0} : own[rows[i]];
    return found;
  }

  // Hides pairs of `keys` (bits) that a round shows; of the tile's own round those that segment 0
  // or an earlier one shows.
  void HideRound(int64_t round, uint64_t keys, TileMask* mask) {
    q_chunks_ = Of(places_.chunk, round, q_rows_);
    Lane least = q_chunks_[0], most = q_chunks_[0];
    for (const Lane chunk : q_chunks_) least = std::min(least, chunk), most = std::max(most, chunk);
    for (Lane& chunk : q_chunks_) chunk = static_cast<Lane>(chunk + static_cast<Lane>(r_.lo));
    if (!r_.across) {
      q_buckets_ = Of(places_.bucket, round, q_rows_);
      k_buckets_ = Of(places_.bucket, round, k_rows_);
    }
    // Only the segments of the round itself where other rounds are not seen.
    const int64_t step = r_.flat && !r_.across ? r_.rounds : 1;
    const int64_t first = -FloorDiv(-FloorDiv(least + r_.lo, C_), step) * step;
    const int64_t last = FloorDiv(most + r_.hi, C_);
    Marks marks;
    const bool is_marked = width_ < kMostMarked;
    for (uint64_t left = is_marked ? queries_ : 0; left != 0; left &= left - 1) {
      const int q = std::countr_zero(left);
      marks.Add(q_chunks_[q], width_, q);
    }
    const bool is_exact = is_marked && r_.across && (last - first + 1) * C_ <= Marks::kNumbers;
    for (int64_t segment = first; segment <= last; segment += step) {
      const int64_t of = r_.flat ? Remainder(round + segment, r_.rounds) : round;
      const Lanes<Lane>& chunks = KeyChunks(of);
      uint64_t left = round == round_ && segment != 0 ? keys & KeysBehind(segment) : keys;
      for (; left != 0; left &= left - 1) {
        const int k = std::countr_zero(left);
        const auto number = static_cast<Lane>(chunks[k] + static_cast<Lane>(segment * C_));
        uint64_t shown = (*mask)[k];
        if (is_marked) shown &= marks.At(number);
        if (!is_exact && shown != 0) shown = SeenAt(number, k, shown);
        (*mask)[k] &= ~shown;
      }
    }
  }

  uint64_t KeysBehind(int64_t segment) const {
    uint64_t keys = 0;
    for (int64_t k = 0; k < kTile; ++k) keys |= uint64_t{segments_[k] > segment} << k;
    return keys;
  }

  // The queries among `queries` (bits) whose windows hold a number, and whose bucket is that of key
  // k. A number before the first one of a window wraps around to more than any width.
  uint64_t SeenAt(Lane number, int64_t k, uint64_t queries) const {
    const auto width = static_cast<Lane>(width_);
    constexpr int kFew = 8;
    if (std::popcount(queries) <= kFew) {
      for (uint64_t left = queries; left != 0; left &= left - 1) {
        const int q = std::countr_zero(left);
        const bool is_seen = static_cast<Lane>(number - q_chunks_[q]) <= width &&
                             (r_.across || q_buckets_[q] == k_buckets_[k]);
        if (!is_seen) queries &= ~(uint64_t{1} << q);
      }
      return queries;
    }
    Lanes<Lane> seen;
    for (int64_t q = 0; q < kTile; ++q) {
      seen[q] = static_cast<Lane>(number - q_chunks_[q]) <= width ? kYes : 0;
    }
    queries &= BitsOf(seen);
    return r_.across ? queries : queries & EqualTo(k_buckets_[k], q_buckets_);
  }

  const ReformerRounds& r_;
  const ReformerPlaces<Lane>& places_;
  const int64_t C_, width_, round_;  // width_: chunks of a window but one
  int64_t q_first_ = 0;
  Lanes<int32_t> q_rows_, k_rows_;             // -1: none
  uint64_t queries_ = 0;                       // those that may see something
  Lanes<int64_t> segments_;                    // of the keys, as ForEachRange numbers them
  uint64_t far_keys_ = 0;                      // of a segment other than 0
  Lanes<Lane> k_chunks_[kMostReformerRounds];  // of the rounds (bits) in listed_
  uint64_t listed_ = 0;
  // Of the round at hand: the first chunk that a query sees, buckets.
  Lanes<Lane> q_chunks_, q_buckets_, k_buckets_;
};

}  // namespace

void KeepReformerTile(const ReformerHead& head, int64_t round, int64_t q_tile, int64_t key_tile,
                      TileMask* mask) {
  if (head.is_narrow()) {
    TileOfRound<uint16_t>(head, head.narrow(), round).Keep(q_tile, key_tile, mask);
  } else {
    TileOfRound<uint32_t>(head, head.wide(), round).Keep(q_tile, key_tile, mask);
  }
}

}  // namespace attnd
