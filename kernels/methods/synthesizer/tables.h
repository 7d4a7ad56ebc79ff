// Options and tables of synthesizer: what is declared, sent and drawn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/random_table.h"
#include "kernels/method/info.h"
#include "kernels/method/options.h"
#include "kernels/method/problem.h"

namespace attnd {

enum class SynthesizerComponent : uint8_t {
  kDense,
  kRandom,
  kFactorizedRandom,
  kFactorizedDense,
  kDot
};
enum class SynthesizerMix : uint8_t { kSum, kSoftmax };

// Names in the API, in the order of SynthesizerComponent.
const std::vector<std::string>& ComponentNames();

struct SynthesizerOptions {
  std::vector<SynthesizerComponent> components = {SynthesizerComponent::kDense};
  SynthesizerMix mix = SynthesizerMix::kSum;
  std::optional<int64_t> rank;  // unset: 8, or that of the tensors
  std::optional<int64_t> a;     // unset: ceil(sqrt(Nk)), or that of the tensors
  std::optional<int64_t> row_offset;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  uint64_t seed = 0;

  bool Has(SynthesizerComponent component) const { return IndexOf(component).has_value(); }
  std::optional<int64_t> IndexOf(SynthesizerComponent component) const;
  bool ReadsQ() const {
    return Has(SynthesizerComponent::kDense) || Has(SynthesizerComponent::kFactorizedDense) ||
           Has(SynthesizerComponent::kDot);
  }
  // Row of the tables that query 0 reads; negative where the first queries see no key.
  int64_t RowOffset(int64_t Nq, int64_t Nk) const {
    return row_offset.value_or(causal ? Nk - Nq : 0);
  }
};

std::vector<OptionSpec<SynthesizerOptions>> SynthesizerLines();

// A learned table, and the component that reads it.
struct SynthesizerTable {
  std::string name, shape, help;
  SynthesizerComponent of;
};
const std::vector<SynthesizerTable>& SynthesizerTables();
// Whether the table is drawn where it is absent; else it is zeros.
bool IsDrawn(const std::string& name);

std::vector<TensorInfo> SynthesizerInputs();

// The sizes of one problem's tables.
struct SynthesizerSizes {
  int64_t rows = 0;  // Nq + row_offset
  int64_t rank = 0, a = 0, b = 0;

  SynthesizerSizes(const ProblemShape& p, const SynthesizerOptions& o);
};

struct DrawnTable {
  DrawParams params;
  Shape shape;
};
// What is drawn for a table of L = Nk.
DrawnTable DrawnOf(const std::string& name, const ProblemShape& p, const SynthesizerOptions& o);

}  // namespace attnd
