// Finds connections that send more than their calls may receive.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "server/connections.h"

namespace attnd {

// gRPC assembles a message of any size before anybody sees its first byte. But what a connection
// has received is known to the system, and what its calls may receive to us; where the one is more
// than the other by kSlackBytes, somebody sends what was not agreed on. It is found within one
// interval: bounded by kSlackBytes + interval x rate of the network.
// What was received and not taken is compared with the least that it has been, so that nobody saves
// up allowance by asking for more than he sends.
//
// Cost: four system calls an interval for each connection that receives, none for a quiet one.
// Not thread safe. Sees nothing on Unix sockets, whose traffic the system does not count.
class FloodWatch {
 public:
  // The room for headers, frames and what arrives just before its call is known.
  static constexpr int64_t kSlackBytes = 16 << 20;

  // `found` gets the connection and the balance that it had at its lowest. Calls that have arrived
  // and are not known yet look like a flood: whoever knows the calls asks IsFlooding again.
  using Found = std::function<void(std::shared_ptr<const Connection> connection, int64_t lowest)>;
  explicit FloodWatch(Found found) : found_(std::move(found)) {}

  static bool IsFlooding(const Connection& connection, int64_t received, int64_t lowest) {
    return connection.Balance(received) - lowest > kSlackBytes + connection.expected.load();
  }

  // Something has arrived on it: it is looked at until it is quiet.
  void Watch(std::shared_ptr<const Connection> connection);
  void OnData(int fd);

  // Looks at those that receive. Returns the sockets of those that have become quiet: OnData is
  // called when they receive again.
  std::vector<int> Look();
  // Time until the next Look; zero: none is needed.
  std::chrono::milliseconds interval() const;

 private:
  struct Entry {
    std::shared_ptr<const Connection> connection;
    int64_t lowest = 0;    // balance
    int64_t received = 0;  // when it last changed
    int quiet_looks = 0;
    bool is_active = true;
  };

  const Found found_;
  std::map<int, Entry> entries_;  // by descriptor
  int active_ = 0;
};

}  // namespace attnd
