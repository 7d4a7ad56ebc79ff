#include "server/turns.h"

#include <algorithm>
#include <cassert>

namespace attnd {

Turns::Client* Turns::Enter(const std::string& name) {
  auto found = clients_.find(name);
  if (found == clients_.end()) {
    ForgetIdle();
    found = clients_.emplace(name, std::make_unique<Client>()).first;
    found->second->name = name;
  }
  Client* const client = found->second.get();
  if (IsIdle(*client)) {
    client->served = std::max(client->served, now_);
    active_ += 1;
  }
  client->waiting += 1;
  return client;
}

void Turns::Leave(Client* client) {
  assert(client->waiting > 0);
  client->waiting -= 1;
  active_ -= IsIdle(*client) ? 1 : 0;
}

void Turns::Take(Client* client, double seconds) {
  now_ = std::max(now_, client->served);
  // With n active clients virtual time passes n times as slowly.
  const auto active = static_cast<double>(std::max<int64_t>(active_, 1));
  const double most = std::max(kLeastDebtSeconds, kMostDebtSeconds / active);
  client->served = std::min(client->served + seconds, now_ + most);
}

void Turns::End(Client* client, double seconds) {
  assert(client->running > 0);
  client->running -= 1;
  active_ -= IsIdle(*client) ? 1 : 0;
  Places::Add(seconds, -1, &client->longer);
}

// Keeps records of idle clients until there are many, so that small requests one after the other
// need no allocation each.
void Turns::ForgetIdle() {
  if (clients_.size() <= kMostIdle) return;
  std::erase_if(clients_, [&](const auto& entry) { return IsIdle(*entry.second); });
}

const Turns::Client* Turns::Largest() const {
  const Client* largest = nullptr;
  for (const auto& [name, client] : clients_) {
    if (client->waiting > (largest == nullptr ? 0 : largest->waiting)) largest = client.get();
  }
  return largest;
}

int64_t Turns::Waiting(const std::string& name) const {
  const auto found = clients_.find(name);
  return found == clients_.end() ? 0 : found->second->waiting;
}

}  // namespace attnd
