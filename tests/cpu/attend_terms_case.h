// A random problem for attend with any of its terms, gather orders and per-head patterns; NaN
// wherever a kernel must not look.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/plain/plain_attend_terms.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

struct TermsSizes {
  int64_t B = 2, H = 4, Hkv = 2, Nq = 70, Nk = 131, D = 20, Dv = 24;
  DType q = DType::kF32, k = DType::kF32, v = DType::kF32, out = DType::kF32;
  AttendParams params = {};
  bool has_pattern = true, per_head = false, padded = false;
  // Slots in random order with holes, some rows left out; of keys also repeats.
  bool gathers_queries = false, gathers_keys = false;
  int64_t Nk2 = 0;     // gathers_keys only
  int64_t listed = 0;  // keys that a query lists at most; 0: the pattern has tiles
  bool key_bias = false, tile_bias = false;
  bool bias = false, alibi = false, sinks = false, table = false, row_weight = false;
  DType bias_dtype = DType::kF32;
  Memory bias_memory = Memory::kDense;
  int bias_repeats = 0;  // bit n: dimension n has stride 0
  int64_t L = 0;         // rows of r; 0: no relative term
  int64_t offset = 0;
  // Standard deviation of the slopes. As in use: at a few hundred positions every other term would
  // drown otherwise.
  double slope = 0.02;
  std::string ToString() const;
};

class TermsCase {
 public:
  TermsCase(const TermsSizes& sizes, unsigned seed);

  AttendProblem Problem() const;
  // Against PlainAttendTerms: no worse than twice plain float32 code, plus a tiny absolute term.
  void ExpectForward() const;
  std::vector<std::byte> Outputs() const;

  TermsSizes sizes;
  TestArray q, k, v, k2, v2, out, lse, bias, slopes, sinks, table, q_rel, r, row_weight;
  std::vector<AttendSeq> seqs;

 private:
  std::shared_ptr<const Pattern> RandomPattern(int64_t nq, int64_t nk);
  // Random numbers in rows below count[b] of every head, NaN in the others.
  TestArray Fill(DType dtype, const Shape& shape, const std::vector<int64_t>& count);
  void FillBias();

  std::mt19937 random_;
};

// As one call, on fresh memory full of NaN, after a dry run that must count the same workspace.
void RunTerms(Device& device, const std::vector<const TermsCase*>& cases);

}  // namespace attnd::testing
