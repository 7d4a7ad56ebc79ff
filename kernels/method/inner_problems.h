// The problems of a call inside a formula.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/method/method.h"

namespace attnd {

// Problems with the sizes and lengths of a request, which may be changed: for an attention among
// other rows than those of q and k.
class InnerProblems {
 public:
  explicit InnerProblems(const Inputs& in);
  InnerProblems(const InnerProblems&) = delete;
  InnerProblems& operator=(const InnerProblems&) = delete;

  ProblemShape& operator[](size_t p) { return problems_[p]; }
  // All sequences are as long as their tensors.
  void DropLengths(const std::string& name);
  // length(p, b) of every sequence, in place of those that were sent under this name; none of
  // problems whose lengths have no values.
  template <class F>
  void SetLengths(const std::string& name, const F& length);
  // problem -> the same lengths under another name, too.
  void CopyLengths(size_t p, const std::string& from, const std::string& to);

  // The problems, and no tensors. Valid as long as this.
  Inputs inputs() const { return {.problems = problems_}; }
  int64_t host_bytes() const { return host_bytes_; }

 private:
  std::vector<std::map<std::string, View>> tensors_;
  std::vector<ProblemShape> problems_;
  std::vector<std::vector<int32_t>> values_;
  int64_t host_bytes_ = 0;
};

template <class F>
void InnerProblems::SetLengths(const std::string& name, const F& length) {
  for (size_t p = 0; p < problems_.size(); ++p) {
    const auto found = tensors_[p].find(name);
    if (found == tensors_[p].end() || found->second.data == nullptr) continue;
    std::vector<int32_t>& values = values_.emplace_back();
    for (int64_t b = 0; b < problems_[p].B; ++b) {
      values.push_back(static_cast<int32_t>(length(p, b)));
    }
    host_bytes_ += problems_[p].B * static_cast<int64_t>(sizeof(int32_t));
    found->second = DenseView(values.data(), DType::kI32, {problems_[p].B});
  }
}

}  // namespace attnd
