// A library of NVIDIA that is loaded at run time, never linked, and serves part of a primitive.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "kernels/core/mutex.h"

namespace attnd::cuda {

// Constants.
struct LibraryFacts {
  const char* name;     // "cuBLASLt"
  const char* file;     // "libcublasLt.so.13": of the version whose interface is declared
  const char* other;    // "libcublasLt.so": where there is no such file
  const char* instead;  // "own kernels serve all products": what happens without it
};

// A function of the library by its name; the library stays loaded. Null: it is absent, or lacks the
// function. The emulator defines it for its own stand-ins.
void* FindFunction(const LibraryFacts& library, const char* name);

// The same as a function of this type. False: there is none.
template <class F>
bool Find(const LibraryFacts& library, const char* name, F** function) {
  *function = reinterpret_cast<F*>(FindFunction(library, name));
  return *function != nullptr;
}

// One line each: why there is no library.
std::string NotInstalled(const LibraryFacts& library);
std::string NotStarting(const LibraryFacts& library, const std::string& why);

using Warn = std::function<void(const std::string&)>;

// What is common to libraries of a device. Thread safe.
class Library {
 public:
  // `warn` gets one line when the library fails, or tells something.
  Library(const LibraryFacts& facts, Warn warn) : facts_(facts), warn_(std::move(warn)) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  virtual ~Library() = default;

  // With its version: "cuBLASLt 13.1.0".
  virtual std::string name() const = 0;
  // Why it serves no more; empty: it does.
  std::string failure() const;
  // That streams were asked for so far: each a product, or what else it computes.
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 protected:
  void CountCall() { calls_.fetch_add(1, std::memory_order_relaxed); }
  // One line, which begins with the library's name.
  void Tell(const std::string& line) const;
  // The first failure is for good.
  void Fail(const std::string& failure);

 private:
  const LibraryFacts& facts_;
  const Warn warn_;
  std::atomic<int64_t> calls_ = 0;
  mutable Mutex mu_;
  std::string failure_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd::cuda
