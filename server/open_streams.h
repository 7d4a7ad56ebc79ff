// Streams may be open for as long as their clients like; this bounds how many.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/rpc.h"
#include "server/task.h"

namespace attnd {

// Polling thread only; outlives the handlers.
class OpenStreams {
 public:
  struct Limits {
    int total = 1024;
    int per_connection = 128;
  };

  // How long a stream whose message did not arrive (Handler::OnOverdue) counts for its client: who
  // opens another one for each that is given up would hold as much memory as before.
  static constexpr std::chrono::seconds kGivenUp{60};

  // Half of all are for one client (Connection::client), so that it does not shut out the others.
  OpenStreams(const Limits& limits, const Clock* clock)
      : limits_(limits), per_client_((limits.total + 1) / 2), clock_(clock) {}

  int count() const { return count_; }

  // Errors: RESOURCE_EXHAUSTED "stream: 1024 are open already, ...", which tells the limit.
  absl::Status Enter(const std::string& peer, const std::string& client);
  // REQUIRES: what entered with the same names.
  void Leave(const std::string& peer, const std::string& client, bool was_given_up = false);

  // What `make` makes, but refused with RESOURCE_EXHAUSTED while too many are open. A stream is
  // open from its headers to the end of its call.
  std::function<std::unique_ptr<Handler>()> Limit(std::function<std::unique_ptr<Handler>()> make);

 private:
  class Limited;

  struct Client {
    int open = 0;
    std::deque<TimePoint> given_up;  // in the last kGivenUp
    int count() const { return open + static_cast<int>(given_up.size()); }
  };

  void ForgetGivenUp();

  const Limits limits_;
  const int per_client_;
  const Clock* const clock_;
  int count_ = 0;
  std::map<std::string, int> by_peer_;
  // Those who have any, or had one given up.
  std::map<std::string, Client> by_client_;
  bool has_given_up_ = false;  // one of them
};

}  // namespace attnd
