// A bound on the number of open streams, which clients may keep open as long as they like.
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

  // How long a stream still counts for its client after it was ended because its message did not
  // arrive (Handler::OnOverdue). Otherwise the client could open another one at once and hold as
  // much memory as before.
  static constexpr std::chrono::seconds kGivenUp{60};

  // One client (Connection::client) may have half of all, so that it cannot shut out the others.
  OpenStreams(const Limits& limits, const Clock* clock)
      : limits_(limits), per_client_((limits.total + 1) / 2), clock_(clock) {}

  int count() const { return count_; }

  // Errors: RESOURCE_EXHAUSTED "stream: 1024 are open already, ...", which states the limit.
  absl::Status Enter(const std::string& peer, const std::string& client);
  // REQUIRES: a stream entered with the same names.
  void Leave(const std::string& peer, const std::string& client, bool was_given_up = false);

  // Wraps the handlers of `make`: calls are refused with RESOURCE_EXHAUSTED while too many streams
  // are open. A stream is open from its headers to the end of its call.
  std::function<std::unique_ptr<Handler>()> Limit(std::function<std::unique_ptr<Handler>()> make);

 private:
  class Limited;

  struct Client {
    int open = 0;
    std::deque<TimePoint> given_up;  // ended for an overdue message in the last kGivenUp
    int count() const { return open + static_cast<int>(given_up.size()); }
  };

  void ForgetGivenUp();

  const Limits limits_;
  const int per_client_;
  const Clock* const clock_;
  int count_ = 0;
  std::map<std::string, int> by_peer_;
  // Clients with open streams or with entries in given_up.
  std::map<std::string, Client> by_client_;
  bool has_given_up_ = false;  // any of them
};

}  // namespace attnd
