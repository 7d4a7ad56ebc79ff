#include "server/config_connections.h"

#include <CLI/CLI.hpp>
#include <string>

#include "server/config_cli.h"

namespace attnd {
namespace {

constexpr char kGroup[] = "Connections";

void AddCount(CLI::App* app, const std::string& name, const char* variable, int least, int* value,
              const std::string& help) {
  app->add_option(name, *value, help)
      ->check(Quiet(CLI::Range(least, 1 << 20)))
      ->type_name("N")
      ->capture_default_str()
      ->envname(variable)
      ->group(kGroup);
}

void AddTime(CLI::App* app, const std::string& name, const char* variable, double* seconds,
             const std::string& help) {
  app->add_option(name, *seconds, help)
      ->transform(Quiet(Time()))
      ->check(Quiet(CLI::Range(0.0, 31536000.0)))
      ->type_name("TIME")
      ->envname(variable)
      ->group(kGroup);
}

}  // namespace

void AddConnectionOptions(CLI::App* app, ConnectionConfig* config) {
  AddCount(
      app, "--max-connections", "ATTND_MAX_CONNECTIONS", 1, &config->max_connections,
      "gRPC connections at a time; one more is closed with a reason. Fewer if the limit of open "
      "files (raised to its hard limit at the start) leaves room for fewer");
  AddCount(app, "--max-connections-per-client", "ATTND_MAX_CONNECTIONS_PER_CLIENT", 0,
           &config->max_per_client,
           "Connections of one address; 0 is half of --max-connections. Behind a proxy all clients "
           "have one address");
  AddCount(
      app, "--max-streams", "ATTND_MAX_STREAMS", 1, &config->max_streams,
      "Open streams (Run, health Watch, reflection) at a time, idle or not, half of them of one "
      "client (an address, or a connection to a Unix socket); one more is refused with "
      "RESOURCE_EXHAUSTED");
  AddCount(app, "--max-streams-per-connection", "ATTND_MAX_STREAMS_PER_CONNECTION", 1,
           &config->max_streams_per_connection,
           "Open streams of one connection, which has room for 128 other calls besides; further "
           "streams wait in the client");
  AddTime(app, "--max-connection-idle", "ATTND_MAX_CONNECTION_IDLE", &config->idle_seconds,
          "Close connections without a call for this long; 0 never. A call that arrives just then "
          "fails with UNAVAILABLE, which clients retry. Default: 0s");
  AddTime(app, "--max-connection-age", "ATTND_MAX_CONNECTION_AGE", &config->age_seconds,
          "Make clients reconnect after this long (10 % more or less), so that load balancers of "
          "connections distribute them again; calls in flight finish. 0 never. Default: 0s");
  AddTime(app, "--keepalive", "ATTND_KEEPALIVE", &config->keepalive_seconds,
          "Ping a connection that has received nothing for this long, to detect clients that are "
          "gone without closing it; 0 never. Default: 60s");
  AddTime(app, "--keepalive-timeout", "ATTND_KEEPALIVE_TIMEOUT", &config->keepalive_timeout_seconds,
          "Close the connection if no answer to the ping comes within this time. Default: 20s");
}

}  // namespace attnd
