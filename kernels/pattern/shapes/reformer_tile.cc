#include "kernels/pattern/shapes/reformer_tile.h"

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
    for (int64_t i = 0; i <= std::min(width, kNumbers - 1); ++i) {
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
    const uint64_t keys = KeysIn(*mask);
    for (int64_t round = 0; r_.unique && round < round_ && keys != 0; ++round) {
      HideRound(round, keys, mask);
    }
    // A round shows a row twice where the chunks of another round wrap into it.
    const bool repeats = r_.unique && r_.across && r_.flat && r_.rounds > 1;
    if (repeats && (keys & far_keys_) != 0) HideRound(round_, keys & far_keys_, mask);
  }

 private:
  static constexpr Lane kYes = static_cast<Lane>(~Lane{0});

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

  // Pairs of `keys` (bits) that a round shows; of the tile's own round those that it shows before.
  void HideRound(int64_t round, uint64_t keys, TileMask* mask) {
    q_chunks_ = Of(places_.chunk, round, q_rows_);
    for (Lane& x : q_chunks_) x = static_cast<Lane>(x + static_cast<Lane>(r_.lo));
    if (!r_.across) {
      q_buckets_ = Of(places_.bucket, round, q_rows_);
      k_buckets_ = Of(places_.bucket, round, k_rows_);
    }
    HideNear(round, keys, mask);
    HideFar(round, keys, mask);
  }

  // Within the chunks of the round itself.
  void HideNear(int64_t round, uint64_t keys, TileMask* mask) {
    const Lanes<Lane>& chunks = KeyChunks(round);
    Marks marks;
    for (uint64_t left = queries_; left != 0; left &= left - 1) {
      const int q = std::countr_zero(left);
      marks.Add(q_chunks_[q], width_, q);
    }
    const bool is_exact = r_.across && C_ + width_ <= Marks::kNumbers;
    for (; keys != 0; keys &= keys - 1) {
      const int k = std::countr_zero(keys);
      uint64_t shown = (*mask)[k] & marks.At(chunks[k]);
      for (uint64_t left = is_exact ? 0 : shown; left != 0; left &= left - 1) {
        const int q = std::countr_zero(left);
        // A chunk before the first one wraps around to more than any width.
        const bool is_shown = static_cast<Lane>(chunks[k] - q_chunks_[q]) <= width_ &&
                              (r_.across || q_buckets_[q] == k_buckets_[k]);
        if (!is_shown) shown &= ~(uint64_t{1} << q);
      }
      (*mask)[k] &= ~shown;
    }
  }

  // Beyond them: of the few queries near its ends.
  void HideFar(int64_t round, uint64_t keys, TileMask* mask) {
    const int64_t last = C_ - 1 - width_;  // the last first chunk of a window that ends inside
    Lanes<Lane> beyond;
    for (int64_t q = 0; q < kTile; ++q) beyond[q] = q_chunks_[q] > last ? kYes : 0;
    for (uint64_t left = queries_ & BitsOf(beyond); left != 0; left &= left - 1) {
      const int q = std::countr_zero(left);
      const int64_t c = places_.chunk[round * r_.n + q_rows_[q]];
      ForEachRange(r_, round, c, [&](int64_t segment, const ChunkRange& range) {
        if (segment == 0 || (!r_.across && range.round != round)) return;
        uint64_t shown = keys & KeysIn(range);
        if (!r_.across) shown &= EqualTo(q_buckets_[q], k_buckets_);
        for (int64_t k = 0; round == round_ && k < kTile; ++k) {
          if (segments_[k] <= segment) shown &= ~(uint64_t{1} << k);
        }
        for (; shown != 0; shown &= shown - 1) {
          (*mask)[std::countr_zero(shown)] &= ~(uint64_t{1} << q);
        }
      });
    }
  }
  // Keys (bits) whose chunk of a round is in the range.
  uint64_t KeysIn(const ChunkRange& range) {
    const Lanes<Lane>& chunks = KeyChunks(range.round);
    const auto first = static_cast<Lane>(range.first);
    const auto width = static_cast<Lane>(range.last - range.first);
    Lanes<Lane> inside;
    for (int64_t k = 0; k < kTile; ++k) {
      inside[k] = static_cast<Lane>(chunks[k] - first) <= width ? kYes : 0;
    }
    return BitsOf(inside);
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
