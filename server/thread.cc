#include "server/thread.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {

absl::StatusOr<std::thread> StartThread(std::string name, std::function<void()> f) {
  try {
    return std::thread([name, f = std::move(f)] {
      pthread_setname_np(pthread_self(), name.c_str());
      f();
    });
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, ": cannot start a thread: ", error.what()));
  }
}

}  // namespace attnd
