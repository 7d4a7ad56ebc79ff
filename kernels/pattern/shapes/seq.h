// The sequence that a pattern belongs to. What it shows follows from Nq and Nk; lengths only leave
// rows out.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/device/pattern.h"
#include "kernels/pattern/source.h"

namespace attnd {

// The tuning of the device that runs the pattern. It adds nothing to a key: the parameters of a
// source hold what it decides, so that devices share the patterns of which they want the same form.
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

// The half of a pattern that is wanted. Local: near keys, or the rows that see these; global: far
// keys, or the rows that see all; both: one softmax over local and global keys.
enum class Half : uint8_t { kBoth, kLocal, kGlobal };

}  // namespace attnd
