#include "kernels/method/inner_problems.h"

namespace attnd {

InnerProblems::InnerProblems(const Inputs& in)
    : tensors_(in.problems.size()), problems_(in.problems.begin(), in.problems.end()) {
  for (size_t p = 0; p < problems_.size(); ++p) {
    for (const char* name : {"q_lengths", "kv_lengths"}) {
      if (const View* view = problems_[p].Find(name)) tensors_[p][name] = *view;
    }
    problems_[p].tensors = &tensors_[p];
  }
}

void InnerProblems::DropLengths(const std::string& name) {
  for (std::map<std::string, View>& tensors : tensors_) tensors.erase(name);
}

void InnerProblems::CopyLengths(size_t p, const std::string& from, const std::string& to) {
  const auto found = tensors_[p].find(from);
  if (found != tensors_[p].end()) tensors_[p][to] = found->second;
}

}  // namespace attnd
