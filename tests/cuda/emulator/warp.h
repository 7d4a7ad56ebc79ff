// Collectives of a warp: shuffles, votes, reductions, ldmatrix, mma.sync. Each runs once, in the
// last lane to arrive, for all lanes.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>

#include "fibers.h"

namespace emu {

// Two or four 8x8 matrices of 16-bit elements from shared memory: lane i points to row i % 8 of
// matrix i / 8 (16 bytes, aligned); r[m] holds elements (lane / 4, lane % 4 * 2 + {0, 1}) of matrix
// m, or of its transpose. Of two matrices lanes 16 to 31 point to nothing.
void LdMatrix(uint32_t* r, int count, const void* row, bool transposed, const Where& where);

enum class MmaType { kBf16, kF16 };
// d[16x8] += a[16x16] b[16x8] in float32, k ascending; the device has its own order of the sums.
// With g = lane / 4, t = lane % 4 * 2:
// a[i]: row g + i % 2 * 8, columns t + i / 2 * 8 + {0, 1}; b0, b1: rows t + {0, 1} and t + {8, 9},
// column g; d[i]: row g + i / 2 * 8, column t + i % 2.
void Mma16816(MmaType type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
              const Where& where);
// d[16x8] += a[16x8] b[8x8]. The inputs are the bits of floats, of which the low 13 do not count.
// With t = lane % 4: a[i]: row g + i % 2 * 8, column t + i / 2 * 4; b0, b1: rows t and t + 4,
// column g; d as above.
void Mma1688Tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                 const Where& where);

// Value of lane `source`, which must be in `mask`.
template <class T>
T Exchange(const char* name, unsigned mask, T value, int source, const Where& where) {
  static_assert(std::is_trivially_copyable_v<T>);
  struct Args {
    T in, out;
    int source;
  } args{value, value, source};
  const Op op = [](void* const lanes[32], unsigned members, const Where& place) {
    for (unsigned rest = members; rest != 0; rest &= rest - 1) {
      const int i = __builtin_ctz(rest);
      Args& lane = *static_cast<Args*>(lanes[i]);
      if ((members >> lane.source & 1) == 0) {
        Fail(place, "lane %d reads lane %d, outside the mask", i, lane.source);
      }
      lane.out = static_cast<Args*>(lanes[lane.source])->in;
    }
  };
  Collective(name, op, &args, mask, where);
  return args.out;
}

// Rule of all the lanes of `mask`, in ascending order.
template <class Rule, class T>
T Reduce(const char* name, unsigned mask, T value, const Where& where) {
  const Op op = [](void* const lanes[32], unsigned members, const Where&) {
    T all = *static_cast<T*>(lanes[__builtin_ctz(members)]);
    for (unsigned rest = members & (members - 1); rest != 0; rest &= rest - 1) {
      all = Rule()(all, *static_cast<T*>(lanes[__builtin_ctz(rest)]));
    }
    for (unsigned rest = members; rest != 0; rest &= rest - 1) {
      *static_cast<T*>(lanes[__builtin_ctz(rest)]) = all;
    }
  };
  Collective(name, op, &value, mask, where);
  return value;
}

// The lanes of `mask` whose value has the same bits.
template <class T>
unsigned Match(unsigned mask, T value, const Where& where) {
  struct Args {
    T in;
    unsigned out;
  } args{value, 0};
  const Op op = [](void* const lanes[32], unsigned members, const Where&) {
    for (unsigned rest = members; rest != 0; rest &= rest - 1) {
      Args& lane = *static_cast<Args*>(lanes[__builtin_ctz(rest)]);
      for (unsigned other = members; other != 0; other &= other - 1) {
        const int j = __builtin_ctz(other);
        const T& in = static_cast<Args*>(lanes[j])->in;
        if (__builtin_memcmp(&in, &lane.in, sizeof(T)) == 0) lane.out |= 1u << j;
      }
    }
  };
  Collective("__match_any_sync", op, &args, mask, where);
  return args.out;
}

unsigned Ballot(const char* name, unsigned mask, bool vote, const Where& where);

}  // namespace emu

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, emu::Where w = emu::Where::Here()) {
  const int first = emu::self->Lane() & -width;
  return emu::Exchange("__shfl_sync", mask, v, first + (source & (width - 1)), w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int flip, int width = 32, emu::Where w = emu::Where::Here()) {
  const int lane = emu::self->Lane(), from = lane ^ flip, last = lane | (width - 1);
  return emu::Exchange("__shfl_xor_sync", mask, v, from <= last ? from : lane, w);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, int delta, int width = 32,
                   emu::Where w = emu::Where::Here()) {
  const int lane = emu::self->Lane(), from = lane + delta, last = lane | (width - 1);
  return emu::Exchange("__shfl_down_sync", mask, v, from <= last ? from : lane, w);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, int delta, int width = 32, emu::Where w = emu::Where::Here()) {
  const int lane = emu::self->Lane(), from = lane - delta, first = lane & -width;
  return emu::Exchange("__shfl_up_sync", mask, v, from >= first ? from : lane, w);
}

inline unsigned __ballot_sync(unsigned mask, int vote, emu::Where w = emu::Where::Here()) {
  return emu::Ballot("__ballot_sync", mask, vote != 0, w);
}
inline int __any_sync(unsigned mask, int vote, emu::Where w = emu::Where::Here()) {
  return emu::Ballot("__any_sync", mask, vote != 0, w) != 0;
}
inline int __all_sync(unsigned mask, int vote, emu::Where w = emu::Where::Here()) {
  return emu::Ballot("__all_sync", mask, vote == 0, w) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T v, emu::Where w = emu::Where::Here()) {
  return emu::Match(mask, v, w);
}

// Of int and unsigned, as on the device.
namespace emu {
struct Add {
  unsigned operator()(unsigned a, unsigned b) const { return a + b; }
};
struct Min {
  auto operator()(auto a, auto b) const { return b < a ? b : a; }
};
struct Max {
  auto operator()(auto a, auto b) const { return a < b ? b : a; }
};
template <class T>
concept Word = std::is_same_v<T, int> || std::is_same_v<T, unsigned>;
}  // namespace emu
template <emu::Word T>
T __reduce_add_sync(unsigned mask, T v, emu::Where w = emu::Where::Here()) {
  return static_cast<T>(
      emu::Reduce<emu::Add>("__reduce_add_sync", mask, static_cast<unsigned>(v), w));
}
template <emu::Word T>
T __reduce_min_sync(unsigned mask, T v, emu::Where w = emu::Where::Here()) {
  return emu::Reduce<emu::Min>("__reduce_min_sync", mask, v, w);
}
template <emu::Word T>
T __reduce_max_sync(unsigned mask, T v, emu::Where w = emu::Where::Here()) {
  return emu::Reduce<emu::Max>("__reduce_max_sync", mask, v, w);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, emu::Where w = emu::Where::Here()) {
  return emu::Reduce<std::bit_and<>>("__reduce_and_sync", mask, v, w);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, emu::Where w = emu::Where::Here()) {
  return emu::Reduce<std::bit_or<>>("__reduce_or_sync", mask, v, w);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, emu::Where w = emu::Where::Here()) {
  return emu::Reduce<std::bit_xor<>>("__reduce_xor_sync", mask, v, w);
}
