// transport_server KIND [SPIN_US [large]]: prints its port and serves until its standard input
// ends.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/synchronization/mutex.h"
#include "attnd/client.h"
#include "tests/bench/transport.d/echo_server.h"
#include "tests/bench/transport.d/load.h"

namespace attnd::bench {
namespace {

using Factory = std::unique_ptr<EchoServer> (*)(const ServerOptions&);
const std::map<std::string, Factory> kKinds = {{"in_place", NewInPlaceServer},
                                               {"gather", NewGatherServer},
                                               {"sync", NewSyncServer},
                                               {"callback", NewCallbackServer},
                                               {"raw", NewRawServer}};

int Main(int argc, char** argv) {
  if (argc < 2 || kKinds.count(argv[1]) == 0) Die("usage: transport_server KIND [SPIN_US [large]]");
  const std::string kind = argv[1];
  // As attnd-server does; the peers keep the malloc that a plain program has.
  if (kind == "in_place" || kind == "gather") {
    client::TuneMalloc();
    mallopt(M_ARENA_MAX, 1);
  }
  // As attnd-server does; this setting is for the peers, too, as they use the same copy of gRPC.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const bool large_reads = argc > 3;
  if (large_reads) client::UseLargeReads();
  const std::unique_ptr<EchoServer> server =
      kKinds.at(kind)({.spin_us = argc > 2 ? std::atoi(argv[2]) : 0, .large_reads = large_reads});
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  // Without the destructors: detached threads and calls in flight end with the process.
  std::_Exit(0);
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) { return attnd::bench::Main(argc, argv); }
