#include "server/unfinished_messages.h"

namespace attnd {

bool UnfinishedMessages::IsKnown(uint32_t stream) const {
  return int64_t{stream} + 2 * kKnownStreams > last_stream_.load(std::memory_order_relaxed);
}

bool UnfinishedMessages::IsEnded(uint32_t stream) const {
  const uint32_t place = PlaceOf(stream);
  return IsKnown(stream) && (ended_[place / kBits].load() >> place % kBits & 1) != 0;
}

void UnfinishedMessages::Open(uint32_t stream) {
  last_stream_.store(stream, std::memory_order_relaxed);
  const uint32_t place = PlaceOf(stream);
  if (IsEnded(stream)) ended_[place / kBits].fetch_and(~(uint64_t{1} << place % kBits));
}

// Put stores a message and then checks whether the stream has ended; End marks the stream and then
// looks for messages. So in any order one of them removes the message.
void UnfinishedMessages::End(uint32_t stream) {
  if (IsKnown(stream)) {
    const uint32_t place = PlaceOf(stream);
    ended_[place / kBits].fetch_or(uint64_t{1} << place % kBits);
  }
  Erase(stream);
}

void UnfinishedMessages::Put(uint32_t stream, const Message& message, bool is_new) {
  {
    const MutexLock lock(&mu_);
    Entry& entry = entries_[stream];
    entry.message = message;
    if (is_new) entry.seen.reset();
    if (entries_.size() > kMostMessages) entries_.erase(entries_.begin());
    count_.store(entries_.size());
  }
  if (IsEnded(stream)) Erase(stream);
}

void UnfinishedMessages::Erase(uint32_t stream) {
  if (count_.load() == 0) return;
  const MutexLock lock(&mu_);
  entries_.erase(stream);
  count_.store(entries_.size());
}

UnfinishedMessages::Message UnfinishedMessages::Find(uint32_t stream) const {
  if (empty()) return {};
  const MutexLock lock(&mu_);
  const auto found = entries_.find(stream);
  return found == entries_.end() ? Message{} : found->second.message;
}

std::vector<int64_t> UnfinishedMessages::Sizes(uint32_t except_stream) const {
  std::vector<int64_t> sizes;
  const MutexLock lock(&mu_);
  for (const auto& [stream, entry] : entries_) {
    if (stream != except_stream && entry.message.left > 0) sizes.push_back(entry.message.bytes);
  }
  return sizes;
}

std::vector<int64_t> UnfinishedMessages::Overdue(TimePoint now, std::chrono::seconds patience) {
  std::vector<int64_t> arrived;
  if (empty()) return arrived;
  const MutexLock lock(&mu_);
  for (auto& [stream, entry] : entries_) {
    const int64_t bytes = entry.message.arrived();
    if (bytes <= kFreeBytes) continue;
    if (!entry.seen.has_value()) entry.seen = now;
    if (now - *entry.seen >= patience) arrived.push_back(bytes);
  }
  return arrived;
}

}  // namespace attnd
