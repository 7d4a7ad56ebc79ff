// Turns between clients, by predicted seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "server/places.h"

namespace attnd {

// Start-time fair queueing: each client has a virtual time that advances by the seconds of its
// served requests; the client with the least is next. A client that returns after a pause starts at
// the virtual time of the last one served, so that it cannot save up turns. It is at most so far
// ahead of that time as others make up in about kMostDebtSeconds (at least kLeastDebtSeconds), so
// that one long request does not cost its client minutes of turns.
//
// Not thread safe. Remembers the times of up to kMostIdle idle clients.
class Turns {
 public:
  static constexpr double kMostDebtSeconds = 2, kLeastDebtSeconds = 0.25;
  static constexpr size_t kMostIdle = 1024;

  struct Client {
    std::string name;
    double served = 0;        // virtual time
    int64_t waiting = 0;      // requests in the queue
    int64_t running = 0;      // batches opened by one of its requests
    Places::Counts longer{};  // of the running batches, as predicted
  };

  // One more request of this client waits. The pointer stays valid until the client neither waits
  // nor runs.
  Client* Enter(const std::string& name);
  // One request less waits: it was taken or dropped.
  void Leave(Client* client);
  // The client takes its turn with a request, or a batch, of `seconds`.
  void Take(Client* client, double seconds);
  // A batch that a request of the client opens: it is being filled, begins to run for `seconds`
  // (predicted), ends.
  void Open(Client* client) { client->running += 1; }
  void Begin(Client* client, double seconds) { Places::Add(seconds, 1, &client->longer); }
  void End(Client* client, double seconds);

  // The client with the most waiting requests; null if none waits.
  const Client* Largest() const;
  // Waiting requests of a client; 0 if it is unknown.
  int64_t Waiting(const std::string& name) const;
  size_t size() const { return clients_.size(); }

 private:
  static bool IsIdle(const Client& client) { return client.waiting == 0 && client.running == 0; }
  void ForgetIdle();

  std::unordered_map<std::string, std::unique_ptr<Client>> clients_;
  int64_t active_ = 0;  // clients with waiting or running requests
  double now_ = 0;      // virtual time of the last one served
};

}  // namespace attnd
