#include "kernels/core/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/core/random_block.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

using Drawer = void(PhiloxKey, uint64_t, double*);

// Calls put(i, x) with element first + i of the stream for every i below `count`.
template <class Put>
void ForEach(Drawer* draw, PhiloxKey key, uint64_t first, size_t count, const Put& put) {
  double values[kDrawn];
  uint64_t element = first / 4 * 4;
  const uint64_t end = first + count;
  for (; element < end; element += kDrawn) {
    if (element / kDrawn % 16 == 0 && CheckPoint()) return;
    draw(key, element / 4, values);
    const uint64_t begin = std::max(element, first), until = std::min(element + kDrawn, end);
    for (uint64_t e = begin; e < until; ++e) put(e - first, values[e - element]);
  }
}

}  // namespace

uint64_t Fnv1a(absl::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

RandomStream::RandomStream(uint64_t seed, absl::string_view name)
    : seed_(seed), hash_(Fnv1a(name)) {}

double RandomStream::Uniform(uint64_t element) const {
  double value = 0;
  ForEach(DrawUniforms, {seed_, hash_}, element, 1, [&](size_t, double x) { value = x; });
  return value;
}

double RandomStream::Normal(uint64_t element) const {
  double value = 0;
  Normals(element, std::span(&value, 1));
  return value;
}

void RandomStream::Uniforms(uint64_t first, std::span<float> values, double low,
                            double high) const {
  ForEach(DrawUniforms, {seed_, hash_}, first, values.size(),
          [&](size_t i, double x) { values[i] = static_cast<float>(low + (high - low) * x); });
}

void RandomStream::Normals(uint64_t first, std::span<float> values, double deviation) const {
  ForEach(DrawNormals, {seed_, hash_}, first, values.size(),
          [&](size_t i, double x) { values[i] = static_cast<float>(deviation * x); });
}

void RandomStream::Normals(uint64_t first, std::span<double> values) const {
  ForEach(DrawNormals, {seed_, hash_}, first, values.size(),
          [&](size_t i, double x) { values[i] = x; });
}

void RandomStream::TruncatedNormals(uint64_t first, std::span<float> values,
                                    double deviation) const {
  const double scale = deviation / 0.87962566103423978;
  ForEach(DrawTruncatedNormals, {seed_, hash_}, first, values.size(),
          [&](size_t i, double x) { values[i] = static_cast<float>(scale * x); });
}

void RandomStream::Gumbels(uint64_t first, std::span<float> values) const {
  constexpr double kEps = 1e-6;
  ForEach(DrawUniforms, {seed_, hash_}, first, values.size(), [&](size_t i, double u) {
    values[i] = static_cast<float>(-std::log(-std::log(u + kEps) + kEps));
  });
}

uint64_t Mix(uint64_t x) {
  uint64_t z = x + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

namespace {

// What all draws t of one list share.
uint64_t ListKey(uint64_t seed, uint64_t tag, uint64_t a, uint64_t b) {
  uint64_t x = seed;
  for (uint64_t word : {tag, a, b}) x = Mix(x ^ word);
  return x;
}

}  // namespace

uint64_t DrawKey(uint64_t seed, uint64_t tag, uint64_t a, uint64_t b, uint64_t t) {
  return Mix(ListKey(seed, tag, a, b) ^ t);
}

uint64_t Bounded(uint64_t u, uint64_t m) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(u) * m) >> 64);
}

Sampler::Sampler(int64_t most)
    : places_(static_cast<size_t>(most)), marks_(static_cast<size_t>(most / 64 + 1)) {
  std::iota(places_.begin(), places_.end(), 0);
}

std::span<const int32_t> Sampler::Draw(int64_t M, int64_t count, uint64_t seed, uint64_t tag,
                                       uint64_t a, uint64_t b) {
  const int64_t taken = std::clamp<int64_t>(count, 0, M);
  const uint64_t key = ListKey(seed, tag, a, b);
  swapped_.clear();
  for (int64_t t = 0; t < taken; ++t) {
    const auto step = Bounded(Mix(key ^ static_cast<uint64_t>(t)), static_cast<uint64_t>(M - t));
    swapped_.push_back(static_cast<int32_t>(t + static_cast<int64_t>(step)));
    std::swap(places_[t], places_[swapped_.back()]);
  }
  drawn_.assign(places_.begin(), places_.begin() + taken);
  // Undone in reverse, so that the next draw finds places in order without writing all of them.
  for (int64_t t = taken - 1; t >= 0; --t) std::swap(places_[t], places_[swapped_[t]]);
  constexpr int64_t kSparse = 256;  // places for each of few that are drawn: sorting is faster
  if (M > kSparse * taken) {
    std::sort(drawn_.begin(), drawn_.end());
    return drawn_;
  }
  for (const int32_t place : drawn_) marks_[place / 64] |= uint64_t{1} << place % 64;
  drawn_.clear();
  for (int64_t word = 0; word * 64 < M; ++word) {
    for (; marks_[word] != 0; marks_[word] &= marks_[word] - 1) {
      drawn_.push_back(static_cast<int32_t>(word * 64 + std::countr_zero(marks_[word])));
    }
  }
  return drawn_;
}

}  // namespace attnd
