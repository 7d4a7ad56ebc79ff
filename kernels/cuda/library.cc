#include "kernels/cuda/library.h"

namespace attnd::cuda {

std::string NotInstalled(const LibraryFacts& library) {
  return std::string(library.name) + " (" + library.file + ") is not installed: " + library.instead;
}

std::string NotStarting(const LibraryFacts& library, const std::string& why) {
  return std::string(library.name) + " does not start: " + why + ": " + library.instead;
}

std::string Library::failure() const {
  const MutexLock lock(&mu_);
  return failure_;
}

void Library::Fail(const std::string& failure) {
  {
    const MutexLock lock(&mu_);
    if (!failure_.empty()) return;
    failure_ = failure;
  }
  Tell("has failed: " + failure + ": " + facts_.instead);
}

void Library::Tell(const std::string& line) const {
  if (warn_) warn_(std::string(facts_.name) + " " + line);
}

}  // namespace attnd::cuda
