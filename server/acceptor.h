// Accepts connections and hands over those that have sent a byte.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/connections.h"
#include "server/listen.h"

namespace attnd {

// One thread. gRPC's own listener stops for good, without an error, the first time that accept
// finds no free descriptor (CVE-2023-4785); this one accepts again once a descriptor is free.
//
// A connection is handed over once its first byte has arrived; one that sends nothing for `silence`
// is closed. A connection above a limit gets a GOAWAY frame with the reason (clients show its text)
// and is closed. One descriptor is reserved to refuse connections when no other is left.
class Acceptor {
 public:
  struct Options {
    std::vector<std::string> addresses;
    std::chrono::milliseconds silence{10000};
    // Called on the acceptor's thread; owns the descriptor from then on.
    std::function<void(int fd)> take;
  };

  // Listens; nothing is accepted before Start. Errors: those of ListenOn.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(Options options,
                                                          Connections* connections);
  ~Acceptor() { Stop(); }

  void Start();
  // Closes the listeners and the connections that were not handed over. `take` is not called after
  // it returns.
  void Stop();

  const std::vector<Listener>& listeners() const { return listeners_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  // A socket that is closed at `until` at the latest.
  struct Limited {
    int fd;
    TimePoint until;
  };

  Acceptor(Options options, Connections* connections);
  void Run();
  int TimeoutMs() const;
  void AcceptFrom(int listener);
  void TakeOne(int fd);
  void OnReadable(int fd);
  void Refuse(int fd, const std::string& reason);
  void OnNoDescriptors(int listener, int error);
  void CloseExpired();
  void OnEvent(int fd);
  void Watch(int fd);

  const Options options_;
  Connections* const connections_;
  std::vector<Listener> listeners_;
  int epoll_ = -1, wake_ = -1;
  std::set<int> listening_;  // constant once the thread runs

  // The acceptor's thread only.
  int reserve_ = -1;                 // a descriptor to accept and refuse with when none is left
  std::map<int, TimePoint> silent_;  // accepted, nothing received yet -> when it is closed
  std::deque<Limited> leaving_;      // refused, the GOAWAY frame is on its way
  TimePoint paused_until_;           // listeners are ignored until then: no free descriptors
  TimePoint next_look_;              // when expired sockets are next closed
  bool is_stopping_ = false;

  std::thread thread_;
};

}  // namespace attnd
