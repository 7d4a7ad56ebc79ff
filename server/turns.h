// Turns between clients, by predicted seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "server/places.h"

namespace attnd {

// Start-time fair queueing: each client has a virtual time that advances by the seconds of what was
// taken of it; the client with the least is next. Who comes back after a pause starts at the time
// of the last one served: nobody saves up turns by asking for nothing. Nobody is further ahead of
// that time than it takes about kMostDebtSeconds to make up either (at least kLeastDebtSeconds), so
// that one long request does not cost its client the turns of minutes.
//
// Not thread safe. Remembers what idle clients had, as long as they are at most kMostIdle.
class Turns {
 public:
  static constexpr double kMostDebtSeconds = 2, kLeastDebtSeconds = 0.25;
  static constexpr size_t kMostIdle = 1024;

  struct Client {
    std::string name;
    double served = 0;        // virtual time
    int64_t waiting = 0;      // requests in the queue
    int64_t running = 0;      // batches opened by one of its requests
    Places::Counts longer{};  // of them, as predicted
  };

  // One more request of this client waits. The record stays where it is until the client neither
  // waits nor runs.
  Client* Enter(const std::string& name);
  // One request less waits: it was taken, or dropped.
  void Leave(Client* client);
  // The client's turn: its request, or a batch of such, takes so long.
  void Take(Client* client, double seconds);
  // A batch that one of its requests opens is being made, begins to run for so many predicted
  // seconds, ends.
  void Open(Client* client) { client->running += 1; }
  void Begin(Client* client, double seconds) { Places::Add(seconds, 1, &client->longer); }
  void End(Client* client, double seconds);

  // The client with the most requests that wait; null if none waits.
  const Client* Largest() const;
  // 0 for a client that is not known.
  int64_t Waiting(const std::string& name) const;
  size_t size() const { return clients_.size(); }

 private:
  static bool IsIdle(const Client& client) { return client.waiting == 0 && client.running == 0; }
  void ForgetIdle();

  std::unordered_map<std::string, std::unique_ptr<Client>> clients_;
  int64_t active_ = 0;  // clients that wait or run
  double now_ = 0;      // virtual time of the last one served
};

}  // namespace attnd
