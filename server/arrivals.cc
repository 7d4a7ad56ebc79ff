// Ends calls for what arrives against the rules: more bytes than calls expect, and unannounced
// messages of streams whose rest does not follow.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/line_limit.h"
#include "server/log.h"
#include "server/patience.h"
#include "server/transport.h"

namespace attnd {
namespace {

using std::chrono::seconds;

// The pause between checks of a suspected flood, and how many there are at most.
constexpr std::chrono::milliseconds kFloodCheckPause{2};
constexpr int kMostFloodChecks = 100;

// Patience while unannounced messages fill gRPC's buffers.
constexpr seconds kFullPatience{1};

}  // namespace

void Transport::EndFlood(const FloodWatch::Flood& flood, int checks) {
  const Connection& connection = *flood.connection;
  // Bytes that arrived before their calls are counted as expected by now.
  if (FloodWatch::IsFlooding(connection, flood.lowest)) {
    // gRPC does not report a burst of calls all at once: while more calls arrive, the bytes may be
    // theirs.
    const int64_t calls = connection.calls.load(std::memory_order_relaxed);
    if (std::exchange(connection.calls_at_check, calls) != calls && checks < kMostFloodChecks) {
      return PostAfter(kFloodCheckPause, [this, flood, checks] { EndFlood(flood, checks + 1); });
    }
    ReportFlood(flood);
  }
  connection.is_suspected.store(false, std::memory_order_relaxed);
}

// Begins with the call that expects most: if its message has no declared size, it may expect more.
void Transport::ReportFlood(const FloodWatch::Flood& flood) {
  const Connection& connection = *flood.connection;
  std::vector<std::shared_ptr<Rpc>> calls = OpenCalls();
  std::erase_if(calls, [&](const auto& call) { return !call->Expects(connection); });
  std::sort(calls.begin(), calls.end(),
            [](const auto& a, const auto& b) { return a->expected() > b->expected(); });
  std::vector<int64_t> expected;
  for (const std::shared_ptr<Rpc>& call : calls) expected.push_back(call->expected());
  const std::vector<size_t> suspects = FloodWatch::Suspects(expected, flood);
  static LineLimit lines;
  if (!suspects.empty() && lines.Allow()) {
    Log(LogLevel::kWarning, "more arrives than calls expect", {{"peer", connection.peer}});
  }
  for (const size_t index : suspects) {
    calls[index]->ReportFlood(/*is_certain=*/suspects.size() == 1);
    if (!FloodWatch::IsFlooding(connection, flood.lowest)) return;
  }
}

// The unannounced messages of one connection.
struct Transport::Arrivals {
  const Connection* connection = nullptr;
  std::vector<std::shared_ptr<Rpc>> waiting;  // in ReadUnannounced, for `patience` or longer
  std::vector<int64_t> others;                // what other calls may still receive
  int64_t overdue_bytes = 0;  // of messages that only those that wait can be reading

  void Find(TimePoint now, seconds patience);
};

// The stream of a message is known, the stream of a call is not. But a stream brings one message at
// a time: if more messages are overdue than other calls expect, some of them belong to calls that
// wait in ReadUnannounced.
void Transport::Arrivals::Find(TimePoint now, seconds patience) {
  std::vector<int64_t> overdue = connection->watch->messages().Overdue(now, patience);
  std::sort(overdue.begin(), overdue.end());
  std::sort(others.begin(), others.end());
  auto other = others.begin();
  for (const int64_t bytes : overdue) {
    other = std::lower_bound(other, others.end(), bytes);
    if (other == others.end()) {
      overdue_bytes += bytes;
    } else {
      ++other;
    }
  }
}

std::vector<Transport::Arrivals> Transport::FindOverdue(std::span<const std::shared_ptr<Rpc>> calls,
                                                        TimePoint now, seconds patience) {
  std::map<const Connection*, Arrivals> by_connection;
  for (const std::shared_ptr<Rpc>& call : calls) {
    Arrivals& arrivals = by_connection[call->connection_.get()];
    arrivals.connection = call->connection_.get();
    const std::optional<TimePoint> since = call->unannounced_since();
    if (since.has_value() && now - *since >= patience) {
      arrivals.waiting.push_back(call);
    } else if (call->MayBring()) {
      arrivals.others.push_back(call->expected());
    }
  }
  std::vector<Arrivals> found;
  for (auto& [unused, arrivals] : by_connection) {
    arrivals.Find(now, patience);
    if (arrivals.overdue_bytes > 0) found.push_back(std::move(arrivals));
  }
  return found;
}

void Transport::EndOverdue(const Arrivals& arrivals, seconds patience, absl::string_view why) {
  static LineLimit lines;
  const std::string& peer = arrivals.connection->peer;
  if (lines.Allow()) {
    Log(LogLevel::kWarning, "messages of streams do not arrive",
        {{"peer", peer}, {"bytes", absl::StrCat(arrivals.overdue_bytes)}});
  }
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("stream: a message must arrive within ", patience.count(), " s", why,
                   ", one of this connection did not, retry later"));
  for (const std::shared_ptr<Rpc>& call : arrivals.waiting) call->ReportOverdue(status);
}

void Transport::GiveUpUnannounced(TimePoint now, bool is_short) {
  std::vector<std::shared_ptr<Rpc>> calls = OpenCalls();
  std::erase_if(calls, [](const std::shared_ptr<Rpc>& call) {
    return call->connection_ == nullptr || call->connection_->watch->messages().empty();
  });
  std::set<const Connection*> found;
  for (const Arrivals& arrivals : FindOverdue(calls, now, kFullPatience)) {
    found.insert(arrivals.connection);
  }
  // Found once, it may be the message of a call that has just ended; so it must be found twice.
  const std::set<const Connection*> before = std::exchange(overdue_, std::move(found));
  const auto find = [&](seconds patience) {
    std::vector<Arrivals> overdue = FindOverdue(calls, now, patience);
    std::erase_if(overdue, [&](const Arrivals& a) { return before.count(a.connection) == 0; });
    return overdue;
  };
  const seconds patience = Patience(Rpc::kUnannouncedBytes, is_short);
  for (const Arrivals& arrivals : find(patience)) {
    EndOverdue(arrivals, patience, is_short ? " while others wait for room" : "");
  }
  EndMostOverdue(find(kFullPatience));
}

// Ends calls until the messages that are left fit most_unannounced_.
void Transport::EndMostOverdue(std::vector<Arrivals> overdue) {
  int64_t bytes = 0;
  for (const Arrivals& arrivals : overdue) bytes += arrivals.overdue_bytes;
  std::sort(overdue.begin(), overdue.end(),
            [](const Arrivals& a, const Arrivals& b) { return a.overdue_bytes > b.overdue_bytes; });
  for (const Arrivals& arrivals : overdue) {
    if (bytes <= most_unannounced_) return;
    EndOverdue(arrivals, kFullPatience, " while the server's buffers fill up");
    bytes -= arrivals.overdue_bytes;
  }
}

}  // namespace attnd
