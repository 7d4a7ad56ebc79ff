// transport_load KIND TARGET [SPIN_US [large]]: a client that waits for commands on its standard
// input.
//
//   verify BYTES CALLERS          one call of each caller, answered by {"right":true} if every
//                                 reply has the bytes of q
//   run BYTES CALLERS SECONDS     closed-loop calls, answered in the format of Slice::Json
//
// Ends with its input.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>

#include "attnd/client.h"
#include "tests/bench/transport.d/load.h"

namespace attnd::bench {
namespace {

using Factory = std::unique_ptr<Client> (*)(const ClientOptions&);
const std::map<std::string, Factory> kKinds = {
    {"in_place", NewInPlaceClient},  {"gather", NewGatherClient},
    {"pipeline", NewPipelineClient}, {"sync", NewSyncClient},
    {"callback", NewCallbackClient}, {"raw", NewRawClient}};

bool IsRight(Client& client, const std::vector<Inputs>& inputs) {
  for (size_t caller = 0; caller < inputs.size(); ++caller) {
    const std::string reply = client.Reply(static_cast<int>(caller));
    const AlignedBytes& q = inputs[caller].q;
    if (reply.size() != q.size() || std::memcmp(reply.data(), q.data(), q.size()) != 0)
      return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  if (argc < 3 || kKinds.count(argv[1]) == 0)
    Die("usage: transport_load KIND TARGET [SPIN_US [large]]");
  const std::string kind = argv[1];
  // The peers keep the malloc that a plain program has.
  if (kind == "in_place" || kind == "gather" || kind == "pipeline") client::TuneMalloc();
  if (argc > 4) client::UseLargeReads();
  const std::unique_ptr<Client> client =
      kKinds.at(kind)({.target = argv[2], .spin_us = argc > 3 ? std::atoi(argv[3]) : 0});

  std::vector<Inputs> inputs;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    size_t bytes = 0;
    int callers = 0;
    double seconds = 0;
    words >> command >> bytes >> callers >> seconds;
    if (inputs.size() != static_cast<size_t>(callers) || inputs[0].q.size() != bytes) {
      inputs = RandomInputs(callers, bytes);
      client->Prepare(inputs);
    }
    Slice slice(callers, seconds);
    client->Run(slice);
    if (command == "verify") {
      std::cout << R"({"right":)" << (IsRight(*client, inputs) ? "true" : "false") << "}\n";
    } else {
      std::cout << slice.Json() << "\n";
    }
    std::cout.flush();
  }
  return 0;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) { return attnd::bench::Main(argc, argv); }
