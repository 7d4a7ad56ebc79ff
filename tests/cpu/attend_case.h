// A problem for attend with everything that could make a kernel fail: guard zones around tensors
// that are aligned to their element only, NaN in padding and in fresh memory, a mask of any shape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device/device.h"
#include "kernels/pattern/cache.h"
#include "tests/plain/cpus.h"
#include "tests/plain/plain_attend.h"

namespace attnd {

// A tensor between guard zones; starts as NaN. REQUIRES: a float dtype.
class GuardedTensor {
 public:
  GuardedTensor() = default;
  GuardedTensor(DType dtype, const Shape& shape, Layout layout = Layout::kBHND);

  const View& view() const { return view_; }
  // `d` is 0 for a tensor of rank 3.
  float Get(int64_t b, int64_t h, int64_t n, int64_t d = 0) const;
  void Set(int64_t b, int64_t h, int64_t n, int64_t d, float value);
  // Sequence b as a dense [H,N,D] array.
  std::vector<float> Dense(int64_t b) const;
  std::vector<std::byte> Payload() const;
  bool GuardsIntact() const;

 private:
  char* At(int64_t b, int64_t h, int64_t n, int64_t d) const;
  std::shared_ptr<std::vector<std::byte>> memory_;
  View view_;
};

// The nearest number that `dtype` can hold.
float RoundTo(DType dtype, float value);

// The pattern of a dense matrix sees[i * Nk + j], written without the library's builder.
Pattern DensePattern(int64_t Nq, int64_t Nk, const std::vector<char>& sees);

enum class MaskKind { kNone, kBits, kTiles, kCausal, kGiven };

struct AttendSizes {
  int64_t B = 1, H = 1, Hkv = 1, Nq = 0, Nk = 0, D = 1, Dv = 1;
  DType dtype = DType::kF32;
  Layout layout = Layout::kBHND;
  MaskKind mask = MaskKind::kNone;
  std::function<bool(int64_t i, int64_t j)> sees = {};  // kGiven
  bool padded = false;                                  // nq < Nq and nk < Nk, NaN beyond
  std::string ToString() const;
};

class AttendCase {
 public:
  // Random numbers and mask from `seed`.
  AttendCase(const AttendSizes& sizes, uint64_t seed);

  AttendProblem Forward() const;
  AttendGradProblem Backward() const;
  bool Sees(int64_t b, int64_t i, int64_t j) const;

  // Against PlainAttend: no worse than twice plain float32 code, plus a tiny absolute term.
  void ExpectForward() const;
  void ExpectBackward() const;
  // All outputs as bytes, for bitwise comparison.
  std::vector<std::byte> Outputs(bool backward) const;

  AttendSizes sizes;
  double scale;
  GuardedTensor q, k, v, out, lse, lse_low, dout, dlse, dq, dk, dv;
  std::vector<AttendSeq> seqs;

 private:
  PlainAttendCase Plain(int64_t b) const;
  PlainAttendResult<double> Truth(int64_t b, bool backward) const;
  PlainAttendResult<float> PlainCode(int64_t b, bool backward) const;
  std::vector<std::vector<char>> sees_;  // [b][i * Nk + j]
};

// Runs the list as one call each way, on fresh memory full of NaN.
void RunAttend(Device& device, const std::vector<const AttendCase*>& cases, bool backward);

// As a plan knows them: a bound of what copies of the patterns take.
inline void CountBytes(std::vector<AttendSeq>* seqs) {
  for (AttendSeq& seq : *seqs) {
    seq.pattern_bytes = seq.pattern == nullptr ? 0 : 2 * BytesOf(*seq.pattern);
    for (const auto& pattern : seq.head_patterns) {
      if (pattern != nullptr) seq.pattern_bytes += 2 * BytesOf(*pattern);
    }
  }
}

// Whether the device keeps copies of patterns, which take at most what is planned.
inline bool StoresTiles(const Device& device, std::span<const AttendSeq> seqs) {
  return device.info().name != "cpu" &&
         !std::ranges::all_of(seqs, [](const AttendSeq& seq) { return seq.pattern_bytes == 0; });
}

}  // namespace attnd
