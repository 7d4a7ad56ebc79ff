#include "server/turns.h"

#include <algorithm>
#include <cassert>

namespace attnd {

Turns::Client* Turns::Enter(const std::string& name) {
  std::unique_ptr<Client>& client = clients_[name];
  if (client == nullptr) {
    client = std::make_unique<Client>();
    client->name = name;
  }
  if (client->waiting == 0 && client->running == 0) client->served = std::max(client->served, now_);
  client->waiting += 1;
  return client.get();
}

void Turns::Leave(Client* client) {
  assert(client->waiting > 0);
  client->waiting -= 1;
  Forget(client);
}

void Turns::Take(Client* client, double seconds) {
  now_ = std::max(now_, client->served);
  client->served = std::min(client->served + seconds, now_ + kMostDebtSeconds);
}

void Turns::End(Client* client, bool is_long) {
  assert(client->running > 0);
  client->running -= 1;
  client->running_long -= is_long ? 1 : 0;
  Forget(client);
}

// What an idle client had matters only as long as it is ahead of the others.
void Turns::Forget(Client* client) {
  const auto is_idle = [](const Client& c) { return c.waiting == 0 && c.running == 0; };
  if (!is_idle(*client)) return;
  if (client->served <= now_) {
    clients_.erase(client->name);
  } else if (clients_.size() > kMostIdle) {
    std::erase_if(clients_, [&](const auto& entry) { return is_idle(*entry.second); });
  }
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
