// Streams may be open for as long as their clients like; this bounds how many.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/rpc.h"

namespace attnd {

// Polling thread only; outlives the handlers.
class OpenStreams {
 public:
  struct Limits {
    int total = 1024;
    int per_connection = 256;
  };

  explicit OpenStreams(const Limits& limits) : limits_(limits) {}

  int count() const { return count_; }

  // What `make` makes, but refused with RESOURCE_EXHAUSTED while too many are open. A stream is
  // open from its headers to the end of its call.
  std::function<std::unique_ptr<Handler>()> Limit(std::function<std::unique_ptr<Handler>()> make);

 private:
  class Limited;

  absl::Status Enter(const std::string& peer);
  void Leave(const std::string& peer);

  const Limits limits_;
  int count_ = 0;
  std::map<std::string, int> by_peer_;
};

}  // namespace attnd
