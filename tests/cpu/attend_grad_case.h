// A problem of AttendGrad with any terms, random numbers, and its checks against plain code.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/plain/plain_attend_grad.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

// How a pattern's slots come about.
enum class Slots {
  kNone,     // no pattern
  kInOrder,  // masks, runs of full tiles and empty tiles over rows as they lie
  kGather,   // the same over random orders with repeats, holes and rows of k2
  kOnce,     // the same, but no key row stands in two slots
  kByHead,   // kGather, another one for each head
  kListed,   // random lists, others for each head
};

struct GradSizes {
  int64_t B = 1, H = 1, Hkv = 1, Nq = 0, Nk = 0, Nk2 = 0, D = 1, Dv = 1, V = 5, L = 9;
  int64_t listed = 40;  // keys that a query of kListed has at most
  Slots slots = Slots::kNone;
  DType q = DType::kF32, k = DType::kF32, v = DType::kF32, out = DType::kF32;
  Memory memory = Memory::kDense;
  bool padded = false;  // nq < Nq, nk < Nk, NaN beyond
  // Terms that are given, of "bias slopes sinks table relative constants cap row_weight labels".
  std::string terms;
  // Dimensions of 1 in the terms: any of "b", "h", "q", "k" (the last two of bias only).
  std::string repeats;
  Weighting weighting = Weighting::kSoftmax;
  double hidden_bias = 0;  // share of -inf in bias
  double stretch = 1;      // of scores
  int64_t offset = 0;      // is added to the position of query row 0
  double slope = 0.05;     // most of the slopes
};

class GradCase {
 public:
  GradCase(const GradSizes& sizes, unsigned seed);

  AttendGradProblem Problem() const;
  AttendParams Params() const;
  TestArray& operator[](const std::string& name) { return arrays_.at(name); }
  const TestArray& operator[](const std::string& name) const { return arrays_.at(name); }

  // Every gradient against plain code of float32 and double; guards of all arrays. `weight_unit`:
  // the relative error of weights that are rounded before they are multiplied.
  void ExpectGradients(double weight_unit = 0) const;
  std::vector<std::byte> Gradients() const;  // all, as bytes

  GradSizes sizes;
  std::vector<AttendSeq> seqs;

 private:
  bool Has(const std::string& term) const { return sizes.terms.find(term) != std::string::npos; }
  bool Repeats(char what) const { return sizes.repeats.find(what) != std::string::npos; }
  void AddRow(int64_t b);
  void AddTensors();
  // A random array [B,H,..] and the gradient of it, with 1 where `repeats` says so.
  void AddTerm(const std::string& name, DType dtype, Shape shape, double low, double high);
  // The view of a term over its whole shape.
  View Whole(const std::string& name, const Shape& shape) const;
  View Given(const std::string& name) const;

  unsigned seed_;
  std::map<std::string, TestArray> arrays_;
};

// Runs a list as one call on fresh memory full of NaN, after a dry run that must count the same.
void RunAttendGrad(Device& device, const AttendParams& params,
                   const std::vector<AttendGradProblem>& problems);

}  // namespace attnd::testing
