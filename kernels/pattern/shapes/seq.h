// The sequence that a pattern belongs to. Which pairs are visible depends on Nq and Nk; lengths
// only leave rows out.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/device/pattern.h"
#include "kernels/pattern/source.h"

namespace attnd {

// The tuning of the device that runs the pattern. It adds nothing to a key: the parameters of a
// source hold the decisions that follow from it, so that devices with equal decisions share
// patterns.
struct SeqTuning {
  PatternTuning device;
  std::string key() const { return {}; }
};

// One sequence of a batch: p = i + offset is the position of query i; causal adds j <= p.
struct PatternSeq {
  int64_t Nq = 0, Nk = 0;
  Lengths lengths;
  int64_t offset = 0;
  bool causal = false;
  SeqTuning tuning = {};
};

// Which half of a pattern. Local: near keys, or the rows that see these. Global: far keys, or the
// rows that see all. Both: one softmax over both halves.
enum class Half : uint8_t { kBoth, kLocal, kGlobal };

}  // namespace attnd
