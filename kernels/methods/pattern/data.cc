#include "kernels/methods/pattern/data.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "absl/strings/str_join.h"
#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"
#include "kernels/method/declared_shape.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr size_t kStretch = 1 << 14;  // elements between check points

// The elements of an int32 or uint8 array in host memory, in row-major order. False: the run was
// stopped.
bool ReadValues(const View& view, std::vector<int32_t>* values) {
  const int last = view.shape.rank - 1;
  const int64_t size = view.shape.size(), n = size == 0 ? 1 : view.shape[last];
  values->resize(static_cast<size_t>(size));
  int32_t* to = values->data();
  for (int64_t row = 0; row < size / n; ++row) {
    if (row * n % static_cast<int64_t>(kStretch) < n && CheckPoint()) return false;
    int64_t offset = 0, rest = row;
    for (int i = last - 1; i >= 0; --i) {
      offset += rest % view.shape[i] * view.stride[i];
      rest /= view.shape[i];
    }
    for (int64_t i = 0; i < n; ++i, ++to) {
      const int64_t at = offset + i * view.stride[last];
      if (view.dtype == DType::kU8) {
        *to = view.As<uint8_t>()[at];
      } else {
        std::memcpy(to, view.As<char>() + at * SizeOf(DType::kI32), sizeof(*to));
      }
    }
  }
  return true;
}

// That of the tensor with its batch dimension, which declarations may leave out: 4 of "[H,Nq,R] or
// [B,H,Nq,R]", 3 of "[H,nb]".
int RankWithBatch(absl::string_view declared) {
  size_t rank = 0;
  for (const DeclaredShape::Letters& letters : ParseShape(declared).lists) {
    const bool has_batch = !letters.empty() && letters.front() == "B";
    rank = std::max(rank, letters.size() + (has_batch ? 0 : 1));
  }
  return static_cast<int>(rank);
}

}  // namespace

HostInts::HostInts(Ops& ops, const Inputs& in, const std::string& name, int rank)
    : name_(name), rank_(rank) {
  const auto found = in.tensors.find(name);
  if (found == in.tensors.end() || !ops.status().ok()) return;
  const Tensor& sent = found->second;
  shapes_ = ShapesOf(sent);
  values_.resize(sent.size());
  is_unknown_ = ops.stream().is_dry();
  for (size_t p = 0; p < sent.size(); ++p) {
    if (ops.stream().is_dry()) {
      ops.stream().work().host_bytes += shapes_[p].size() * static_cast<int64_t>(sizeof(int32_t));
    } else if (!ReadValues(sent[p], &values_[p])) {
      ops.Fail(StoppedStatus());
      break;
    }
  }
}

bool HostInts::differs(size_t p) const { return is_sent() && shapes_[p].rank == rank_; }

std::span<const int32_t> HostInts::OfSeq(size_t p, int64_t b) const {
  if (p >= values_.size() || values_[p].empty()) return {};
  const auto size = static_cast<size_t>(SeqShape(p).size());
  const size_t index = shapes_[p].rank == rank_ ? static_cast<size_t>(b) : 0;
  return std::span(values_[p]).subspan(index * size, size);
}

Shape HostInts::SeqShape(size_t p) const {
  Shape shape;
  const int batch = shapes_[p].rank == rank_ ? 1 : 0;
  shape.rank = shapes_[p].rank - batch;
  for (int i = 0; i < shape.rank; ++i) shape.dims[i] = shapes_[p][i + batch];
  return shape;
}

std::span<const int32_t> HostInts::Head(size_t p, int64_t b, int64_t h) const {
  const std::span<const int32_t> values = OfSeq(p, b);
  if (values.empty()) return values;
  const size_t size = values.size() / static_cast<size_t>(Heads(p));
  return values.subspan(static_cast<size_t>(h) * size, size);
}

std::vector<int32_t> HostInts::Nonzero(size_t p, int64_t b) const {
  std::vector<int32_t> places;
  const std::span<const int32_t> values = OfSeq(p, b);
  for (size_t j = 0; j < values.size(); ++j) {
    if (values[j] != 0) places.push_back(static_cast<int32_t>(j));
  }
  return places;
}

std::string HostInts::PlaceOf(size_t p, int64_t element) const {
  const Shape& shape = shapes_[p];
  std::vector<int64_t> place(static_cast<size_t>(shape.rank));
  for (int i = shape.rank - 1; i >= 0; --i) {
    place[i] = element % shape[i];
    element /= shape[i];
  }
  return absl::StrCat(name_, "[", absl::StrJoin(place, ","), "]");
}

absl::Status HostInts::Refusal(absl::string_view method, size_t p, int64_t element,
                               absl::string_view rule) const {
  Reasons reasons(method);
  reasons.Invalid(PlaceOf(p, element), " ", rule, ", got ", values_[p][element]);
  return reasons.status();
}

void HostInts::CheckRange(Ops& ops, absl::string_view method,
                          const std::function<Range(size_t p)>& range,
                          const Matters& matters) const {
  for (size_t p = 0; p < values_.size() && !values_[p].empty() && ops.status().ok(); ++p) {
    const Range allowed = range(p);
    for (size_t at = 0; at < values_[p].size(); ++at) {
      const int32_t value = values_[p][at];
      const auto element = static_cast<int64_t>(at);
      if (at % kStretch == 0 && CheckPoint()) return ops.Fail(StoppedStatus());
      if (value >= allowed.low && value <= allowed.high) continue;
      if (matters && !matters(p, element)) continue;
      ops.Fail(Refusal(method, p, element, absl::StrCat("must be in ", allowed.text)));
      break;
    }
  }
}

void HostInts::CheckPermutations(Ops& ops, absl::string_view method) const {
  for (size_t p = 0; p < values_.size() && !values_[p].empty() && ops.status().ok(); ++p) {
    const int64_t n = shapes_[p][shapes_[p].rank - 1];
    std::vector<bool> occurs;
    for (size_t at = 0; at < values_[p].size(); ++at) {
      if (at % kStretch == 0 && CheckPoint()) return ops.Fail(StoppedStatus());
      const int32_t value = values_[p][at];
      if (at % static_cast<size_t>(n) == 0) occurs.assign(static_cast<size_t>(n), false);
      const bool is_inside = value >= 0 && value < n;
      if (is_inside && !occurs[value]) {
        occurs[value] = true;
        continue;
      }
      ops.Fail(Refusal(method, p, static_cast<int64_t>(at),
                       is_inside ? "must occur once in its row"
                                 : absl::StrCat("must be in 0..nb-1 = 0..", n - 1)));
      break;
    }
  }
}

void HostInts::CheckOffsets(Ops& ops, absl::string_view method, const HostInts& indices) const {
  for (size_t p = 0; p < values_.size() && !values_[p].empty() && ops.status().ok(); ++p) {
    const std::vector<int32_t>& offsets = values_[p];
    const int64_t n = shapes_[p][1], last = static_cast<int64_t>(offsets.size()) - 1;
    const auto nnz = static_cast<int64_t>(indices.values_[p].size());
    std::string rule;
    for (int64_t at = 0; at <= last && rule.empty(); ++at) {
      const int32_t before = at == 0 ? 0 : offsets[at - 1];
      if (at == 0 && offsets[at] != 0) {
        rule = "must be 0";
      } else if (at > 0 && at % n == 0 && offsets[at] != before) {
        rule = absl::StrCat("must be ", name_, "[", at / n - 1, ",nbq] = ", before);
      } else if (offsets[at] < before) {
        rule = absl::StrCat("must be >= ", PlaceOf(p, at - 1), " = ", before);
      } else if (at == last && offsets[at] != nnz) {
        rule = absl::StrCat("must be the size of indices, ", nnz);
      }
      if (!rule.empty()) ops.Fail(Refusal(method, p, at, rule));
    }
  }
}

Integers::Integers(Ops& ops, const Inputs& in, std::span<const TensorInfo> declared) {
  for (const TensorInfo& input : declared) {
    if (input.dtype != "int32" && input.dtype != "uint8") continue;
    by_name_.try_emplace(input.name, ops, in, input.name, RankWithBatch(input.shape));
  }
}

const HostInts& Integers::operator[](absl::string_view name) const {
  const auto found = by_name_.find(name);
  assert(found != by_name_.end());
  return found->second;
}

int64_t Integers::Elements(size_t p) const {
  int64_t elements = 0;
  for (const auto& [name, ints] : by_name_) {
    if (ints.is_sent()) elements += ints.SeqShape(p).size();
  }
  return elements;
}

bool Integers::differ(size_t p) const {
  return std::any_of(by_name_.begin(), by_name_.end(),
                     [p](const auto& named) { return named.second.differs(p); });
}

}  // namespace attnd
