// Command line and environment of attnd-server.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/config_connections.h"
#include "server/log.h"

namespace attnd {

struct Config {
  std::vector<std::string> grpc_addresses = {"127.0.0.1:8001"};
  std::string http_address = "127.0.0.1:8002";
  std::string device = "auto";     // auto, cpu, cuda, cuda:0,1
  int threads = 0;                 // 0: one per core
  std::string self_test = "true";  // true, false, fresh
  std::string cache_folder;        // empty: that of the user (CacheFolder)
  std::string isa;                 // empty: the best of this machine
  int64_t budget_bytes = 0;        // 0: half of the memory that the process may use
  int64_t max_message_bytes = int64_t{1} << 30;
  int64_t max_queue_requests = 1024;
  int64_t max_batch_requests = 64;
  int max_running = 6;
  int max_priority = 0;
  double max_request_seconds = 600;  // 0: none
  int64_t undeclared_bytes = int64_t{16} << 20;
  int max_parked = 4;
  ConnectionConfig connections;
  std::chrono::microseconds spin{0};
  bool large_reads = false;
  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds drain_timeout{30000};
  std::chrono::milliseconds exit_when_stuck{0};  // 0: never
  LogOptions log;
  std::string ports_file;  // empty: none
  bool is_probe = false;   // check the health of the server at grpc_addresses and exit
};

// Version of the CMake project.
std::string Version();

// The parsed command line: a configuration, or a text to print and an exit code (--help and
// --version: standard output and 0; an error: one line on standard error and 2).
struct CommandLine {
  std::optional<Config> config;
  std::string text;
  int exit_code = 0;
};
CommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace attnd
