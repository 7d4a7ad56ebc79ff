#include "server/flood_watch.h"

#include <algorithm>
#include <utility>

namespace attnd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{10};
// So that a thousand busy connections take a few percent of a core at most.
constexpr int kConnectionsPerMs = 10;
constexpr int kLooksUntilQuiet = 20;

}  // namespace

void FloodWatch::Watch(std::shared_ptr<const Connection> connection) {
  const int fd = connection->fd;
  if (const auto old = entries_.find(fd); old != entries_.end()) {
    active_ -= old->second.is_active ? 1 : 0;
    entries_.erase(old);
  }
  entries_[fd].connection = std::move(connection);
  active_ += 1;
}

void FloodWatch::OnData(int fd) {
  const auto found = entries_.find(fd);
  if (found == entries_.end() || std::exchange(found->second.is_active, true)) return;
  found->second.quiet_looks = 0;
  active_ += 1;
}

milliseconds FloodWatch::interval() const {
  if (active_ == 0) return milliseconds(0);
  return std::max(kInterval, milliseconds(active_ / kConnectionsPerMs));
}

std::vector<int> FloodWatch::Look() {
  std::vector<int> quiet;
  for (auto it = entries_.begin(); it != entries_.end();) {
    auto& [fd, entry] = *it;
    if (!entry.is_active) {
      ++it;
      continue;
    }
    const int64_t received = entry.connection->received_bytes();
    if (received < 0) {
      active_ -= 1;
      it = entries_.erase(it);
      continue;
    }
    entry.lowest = std::min(entry.lowest, entry.connection->Balance(received));
    if (IsFlooding(*entry.connection, received, entry.lowest)) {
      found_(entry.connection, std::exchange(entry.lowest, entry.connection->Balance(received)));
    }
    entry.quiet_looks = received == entry.received ? entry.quiet_looks + 1 : 0;
    entry.received = received;
    if (entry.quiet_looks >= kLooksUntilQuiet) {
      entry.is_active = false;
      active_ -= 1;
      quiet.push_back(fd);
    }
    ++it;
  }
  return quiet;
}

}  // namespace attnd
