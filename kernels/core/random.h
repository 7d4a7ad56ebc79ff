// random: numbers that are the same on every device, in every batch and language. Host code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"

namespace attnd {

// Philox4x32-10 (Salmon et al. 2011) keyed by (seed, name), as the specifications define it: key =
// (seed mod 2^32, seed >> 32), counter = (block mod 2^32, block >> 32, hash mod 2^32, hash >> 32)
// with the FNV-1a hash of the stream's name. Element e is value e mod 4 of block e / 4, whatever
// the order of asking.
class RandomStream {
 public:
  RandomStream(uint64_t seed, absl::string_view name);

  // (x + 0.5) / 2^32 in (0, 1).
  double Uniform(uint64_t element) const;
  // Box-Muller on pairs of uniforms, N(0, 1).
  double Normal(uint64_t element) const;
  // Elements [first, first + values.size()), rounded to float32 once. Normals cost about 7 ns each.
  void Uniforms(uint64_t first, std::span<float> values, double low = 0, double high = 1) const;
  void Normals(uint64_t first, std::span<float> values, double deviation = 1) const;
  // z = Phi^-1(Phi(-2) + u (Phi(2) - Phi(-2))), divided by its deviation 0.8796.., times
  // `deviation`: LeCun's normal.
  void TruncatedNormals(uint64_t first, std::span<float> values, double deviation = 1) const;
  // -log(-log(u + 1e-6) + 1e-6), finite for every u.
  void Gumbels(uint64_t first, std::span<float> values) const;
  // The normals before rounding, for computations that go on in float64.
  void Normals(uint64_t first, std::span<double> values) const;

 private:
  uint64_t seed_, hash_;
};

uint64_t Fnv1a(absl::string_view text);

// Integer draws of the pattern methods (SplitMix64's finaliser as a hash).
uint64_t Mix(uint64_t x);
uint64_t DrawKey(uint64_t seed, uint64_t tag, uint64_t a, uint64_t b, uint64_t t);
// The high 64 bits of u * m: uniform in [0, m) up to 2^-64.
uint64_t Bounded(uint64_t u, uint64_t m);
// Draws without replacement from M ascending candidates, as their places 0..M-1. Not thread safe.
// Cost: about `count` steps a draw, for any M.
class Sampler {
 public:
  // `most`: the largest M.
  explicit Sampler(int64_t most);
  // min(count, M) places, ascending.
  std::span<const int32_t> Draw(int64_t M, int64_t count, uint64_t seed, uint64_t tag, uint64_t a,
                                uint64_t b);

 private:
  std::vector<int32_t> places_;  // 0, 1, .. between draws
  std::vector<int32_t> drawn_, swapped_;
  std::vector<uint64_t> marks_;  // a bit a place, none set between draws
};

}  // namespace attnd
