// Streams may be open for as long as their clients like; this bounds how many.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/rpc.h"

namespace attnd {

// Polling thread only; outlives the handlers.
class OpenStreams {
 public:
  struct Limits {
    int total = 1024;
    int per_connection = 256;
  };

  // Half of all are for one client (Connection::client), so that it does not shut out the others.
  explicit OpenStreams(const Limits& limits)
      : limits_(limits), per_client_((limits.total + 1) / 2) {}

  int count() const { return count_; }

  // Errors: RESOURCE_EXHAUSTED "stream: 1024 are open already, ...", which tells the limit.
  absl::Status Enter(const std::string& peer, const std::string& client);
  // REQUIRES: what entered with the same names.
  void Leave(const std::string& peer, const std::string& client);

  // What `make` makes, but refused with RESOURCE_EXHAUSTED while too many are open. A stream is
  // open from its headers to the end of its call.
  std::function<std::unique_ptr<Handler>()> Limit(std::function<std::unique_ptr<Handler>()> make);

 private:
  class Limited;

  const Limits limits_;
  const int per_client_;
  int count_ = 0;
  std::map<std::string, int> by_peer_, by_client_;
};

}  // namespace attnd
