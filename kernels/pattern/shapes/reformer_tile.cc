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

// Compares 64 queries at a time with a key, in numbers of 16 bits where they suffice.
template <class Lane>
class TileOfRound {
 public:
  TileOfRound(const ReformerHead& head, const ReformerPlaces<Lane>& places, int64_t round)
      : r_(head.rounds()), places_(places), C_(head.chunks()), round_(round) {}

  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) {
    q_first_ = q_tile * kTile;
    ListQueries();
    if (!ListKeys(key_tile * kTile, mask)) return;
    // A round shows a row twice where the chunks of another round wrap into it.
    const bool repeats = r_.unique && r_.across && r_.flat && r_.rounds > 1 && far_keys_ != 0;
    const int64_t earlier = r_.unique ? round_ : 0;
    const int64_t near = earlier + (repeats ? 1 : 0);
    for (int64_t round = 0; round < near; ++round) ListNear(round);
    if (near > 0 || r_.causal || far_keys_ != 0 || !r_.across) HideNear(earlier, near, mask);
    for (int64_t round = 0; round < earlier; ++round) HideFar(round, /*own=*/false, mask);
    if (repeats) HideFar(round_, /*own=*/true, mask);
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

  // Their rows, and the queries whose windows hold them. False: nothing is left.
  bool ListKeys(int64_t first, TileMask* mask) {
    const int64_t width = r_.hi - r_.lo;  // chunks of a window but one
    int64_t number = first / r_.chunk, in_chunk = first % r_.chunk;
    int64_t segment = 0, round = 0, chunk = 0;
    uint64_t window = 0, any = 0;
    for (int64_t k = 0; k < kTile; ++k, ++in_chunk) {
      if (in_chunk == r_.chunk) ++number, in_chunk = 0;
      if (k == 0 || in_chunk == 0) {
        segment = FloorDiv(number + r_.lo, C_);
        round = r_.flat ? Remainder(round_ + segment, r_.rounds) : round_;
        chunk = number + r_.lo - segment * C_;
        const bool is_seen = number < C_ + width && (r_.across || round == round_);
        window = is_seen ? queries_ & BitsBetween((number - width) * r_.chunk - q_first_,
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
      any |= seen;
      if (segment != 0) far_keys_ |= uint64_t{seen != 0} << k;
    }
    return any != 0;
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

  void ListNear(int64_t round) {
    KeyChunks(round);
    q_chunks_[round] = Of(places_.chunk, round, q_rows_);
    for (Lane& x : q_chunks_[round]) x = static_cast<Lane>(x + static_cast<Lane>(r_.lo));
  }

  // What is later or the token itself, other buckets, and what the rounds below `earlier` show
  // within their own chunks; below `near` the round itself, of keys that it shows in others'.
  void HideNear(int64_t earlier, int64_t near, TileMask* mask) {
    const auto width = static_cast<Lane>(r_.hi - r_.lo);
    Lanes<Lane> q_places;
    for (int64_t q = 0; q < kTile; ++q) q_places[q] = static_cast<Lane>(q_rows_[q]);
    if (!r_.across) ListBuckets(earlier);
    for (int64_t k = 0; k < kTile; ++k) {
      if ((*mask)[k] == 0) continue;
      const bool is_far = (far_keys_ >> k & 1) != 0;
      const Lane place = static_cast<Lane>(k_rows_[k]);
      Lanes<Lane> hidden{};
      if (r_.causal) {
        for (int64_t q = 0; q < kTile; ++q) hidden[q] = q_places[q] <= place ? kYes : 0;
      } else if (is_far) {
        for (int64_t q = 0; q < kTile; ++q) hidden[q] = q_places[q] == place ? kYes : 0;
      }
      for (int64_t round = 0; round < (is_far ? near : earlier); ++round) {
        const Lanes<Lane>& first = q_chunks_[round];
        const Lane chunk = k_chunks_[round][k];
        // A chunk before the first one wraps around to more than any width.
        if (r_.across) {
          for (int64_t q = 0; q < kTile; ++q) {
            hidden[q] |= static_cast<Lane>(chunk - first[q]) <= width ? kYes : 0;
          }
        } else {
          const Lanes<Lane>& buckets = q_buckets_[round];
          const Lane bucket = k_buckets_[round][k];
          for (int64_t q = 0; q < kTile; ++q) {
            const Lane same = buckets[q] == bucket ? kYes : 0;
            hidden[q] |= static_cast<Lane>(chunk - first[q]) <= width ? same : Lane{0};
          }
        }
      }
      if (!r_.across) {
        const Lanes<Lane>& buckets = q_buckets_[round_];
        const Lane bucket = k_buckets_[round_][k];
        for (int64_t q = 0; q < kTile; ++q) hidden[q] |= buckets[q] == bucket ? 0 : kYes;
      }
      (*mask)[k] &= ~BitsOf(hidden);
    }
  }

  void ListBuckets(int64_t earlier) {
    for (int64_t round = 0; round < earlier; ++round) {
      q_buckets_[round] = Of(places_.bucket, round, q_rows_);
      k_buckets_[round] = Of(places_.bucket, round, k_rows_);
    }
    q_buckets_[round_] = Of(places_.bucket, round_, q_rows_);
    k_buckets_[round_] = Of(places_.bucket, round_, k_rows_);
  }

  // Pairs that `round` shows beyond its own chunks: of the few queries near its ends. `own`: the
  // round of the tile, which hides only keys of later segments.
  void HideFar(int64_t round, bool own, TileMask* mask) {
    for (uint64_t left = queries_; left != 0; left &= left - 1) {
      const int q = std::countr_zero(left);
      const int64_t c = places_.chunk[round * r_.n + q_rows_[q]];
      if (c + r_.lo >= 0 && c + r_.hi < C_) continue;
      ForEachRange(r_, round, c, [&](int64_t segment, const ChunkRange& range) {
        if (segment == 0 || (!r_.across && range.round != round)) return;
        uint64_t shown = KeysIn(range);
        if (!r_.across) shown &= InBucket(round, q_buckets_[round][q]);
        for (int64_t k = 0; own && k < kTile; ++k) {
          if (segments_[k] <= segment) shown &= ~(uint64_t{1} << k);
        }
        if (own) shown &= far_keys_;
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
  uint64_t InBucket(int64_t round, Lane bucket) const {
    Lanes<Lane> inside;
    for (int64_t k = 0; k < kTile; ++k) inside[k] = k_buckets_[round][k] == bucket ? kYes : 0;
    return BitsOf(inside);
  }

  const ReformerRounds& r_;
  const ReformerPlaces<Lane>& places_;
  const int64_t C_, round_;
  int64_t q_first_ = 0;
  Lanes<int32_t> q_rows_, k_rows_;  // -1: none
  uint64_t queries_ = 0;            // those that may see something
  Lanes<int64_t> segments_;         // of the keys, as ForEachRange numbers them
  uint64_t far_keys_ = 0;           // of a segment other than 0
  // Of each round, where they are listed: the first chunk that a query sees, the chunk of a key.
  Lanes<Lane> q_chunks_[kMostReformerRounds], k_chunks_[kMostReformerRounds];
  uint64_t listed_ = 0;
  Lanes<Lane> q_buckets_[kMostReformerRounds], k_buckets_[kMostReformerRounds];
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
