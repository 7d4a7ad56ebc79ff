// Command line options about connections and streams.
#pragma once

namespace CLI {
class App;
}

namespace attnd {

struct ConnectionConfig {
  int max_connections = 4096;
  int max_per_client = 0;  // 0: half of max_connections
  int max_streams = 1024;
  int max_streams_per_connection = 128;
  double idle_seconds = 0, age_seconds = 0;  // 0: no limit
  double keepalive_seconds = 60, keepalive_timeout_seconds = 20;
};

void AddConnectionOptions(CLI::App* app, ConnectionConfig* config);

}  // namespace attnd
