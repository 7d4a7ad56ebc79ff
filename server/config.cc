#include "server/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "server/config_cli.h"
#include "server/config_device.h"

namespace attnd {
namespace {

constexpr char kAbout[] =
    "attnd-server: attention as a service over gRPC (attn.v1.AttentionService, grpc.health.v1, "
    "server reflection) and HTTP (/metrics, /healthz, /readyz).\n"
    "Connections are neither encrypted nor authenticated in this version: keep it on a trusted "
    "network.\n"
    "Every option can also be set by the environment variable named beside it; the command line "
    "wins.\n"
    "Signals: SIGTERM or SIGINT drains (health says NOT_SERVING, new work is refused, work in "
    "flight "
    "finishes) and exits with 0; a second one exits at once with 1. SIGHUP is ignored.\n"
    "Exit codes: 0 drained (--probe: it serves), 1 cannot start or did not drain (--probe: it does "
    "not serve), 2 wrong usage, 3 stuck (--exit-when-stuck), 4 a device failed: health says "
    "NOT_SERVING, its requests get UNAVAILABLE, and the server drains.";

// "host:port" with a port of 0 to 65535, the host not empty; or a socket path.
std::string CheckAddress(const std::string& text) {
  if (text.rfind("unix:", 0) == 0 && text.size() > 5) return "";
  const size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool is_number =
      !port.empty() && port.size() <= 5 &&
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (colon == 0 || !is_number || std::stoi(port) > 65535) {
    return "must be unix:PATH or HOST:PORT with a port from 0 to 65535, got " + text;
  }
  return "";
}

std::string CheckHttpAddress(const std::string& text) {
  if (text.rfind("unix:", 0) != 0 && CheckAddress(text).empty()) return "";
  return "must be HOST:PORT with a port from 0 to 65535, got " + text;
}

std::string CheckExitWhenStuck(const std::string& text) {
  const double seconds = std::stod(text);
  if (seconds == 0 || (seconds >= 5 && seconds <= 86400)) return "";
  return "must be 0 or from 5s to 24h, got " + text + " s";
}

struct Raw {
  uint64_t budget_bytes = 0, max_message_bytes = 0, undeclared_bytes = 0;
  double drain_delay = 0, drain_timeout = 0, spin = 0, exit_when_stuck = 0;
};

void AddListening(CLI::App* app, Config* config) {
  const std::string group = "Listening";
  app->add_option("--grpc", config->grpc_addresses,
                  "Address of the gRPC services; several, separated by commas, are listened on "
                  "together. unix:/path is a socket file. Port 0 takes a free one (see "
                  "--ports-file)")
      ->check(CLI::Validator(CheckAddress, ""))
      ->delimiter(',')
      ->expected(1, 16)
      ->take_all()
      ->type_name("HOST:PORT|unix:PATH")
      ->envname("ATTND_GRPC")
      ->group(group);
  app->add_flag(
         "--large-reads", config->large_reads,
         "Receive messages in large pieces: from 1 MB up 0.7 to 1.4 times as fast, depending on "
         "the machine; slower below. An experimental feature of gRPC 1.51 with which a peer can "
         "make the server allocate 16 MiB for each connection: for trusted peers only")
      ->envname("ATTND_LARGE_READS")
      ->group(group);
  app->add_option("--http", config->http_address,
                  "Address of the pages /metrics (Prometheus), /healthz (alive), /readyz (accepts "
                  "work)")
      ->check(CLI::Validator(CheckHttpAddress, ""))
      ->type_name("HOST:PORT")
      ->envname("ATTND_HTTP")
      ->group(group);
  app->add_option("--ports-file", config->ports_file,
                  "Once ready, write the ports in use to this file as {\"grpc\":N,\"http\":N}, for "
                  "programs that start a server on port 0")
      ->type_name("PATH")
      ->envname("ATTND_PORTS_FILE")
      ->group(group);
}

void AddComputing(CLI::App* app, Config* config, Raw* raw) {
  const std::string group = "Computing";
  app->add_option("--device", config->device,
                  "What computes: auto is the processor and every CUDA device that there is; cuda, "
                  "or some by number as in cuda:0,1, is CUDA devices without the processor, and an "
                  "error where there is none. A request that names none of them runs where it is "
                  "predicted to be done first. Default: auto")
      ->check(CLI::Validator(CheckDevice, ""))
      ->type_name("auto|cpu|cuda|cuda:N,N")
      ->envname("ATTND_DEVICE")
      ->group(group);
  app->add_option(
         "--self-test", config->self_test,
         "true: CUDA devices compute small problems of every primitive at start, in some "
         "seconds; what disagrees with the processor is switched off. The result is kept "
         "in --cache-dir for later starts with the same device, driver and program; fresh "
         "tests all the same; false trusts our own code and uses no library. Default: true")
      ->check(CLI::Validator(CheckSelfTest, ""))
      ->type_name("true|false|fresh")
      ->envname("ATTND_SELF_TEST")
      ->group(group);
  app->add_option("--cache-dir", config->cache_folder,
                  "Folder of files that make later starts faster; it may be deleted at any time. "
                  "Default: $XDG_CACHE_HOME/attnd, else ~/.cache/attnd")
      ->type_name("PATH")
      ->envname("ATTND_CACHE_DIR")
      ->group(group);
  app->add_option("--threads", config->threads,
                  "Threads of the processor that compute; 0 is one per core that the process may "
                  "use. Results do "
                  "not depend on it")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N")
      ->envname("ATTND_THREADS")
      ->group(group);
  app->add_option("--isa", config->isa,
                  "Instruction set: avx512, avx2 or sse4 instead of the best of this machine")
      ->check(Quiet(CLI::IsMember({"avx512", "avx2", "sse4"})))
      ->type_name("NAME")
      ->envname("ATTND_ISA")
      ->group(group);
  app->add_option("--spin", raw->spin,
                  "How long the transport's thread polls for the next event before it sleeps. "
                  "200us makes small calls several times as fast and keeps a core busy: for "
                  "machines with a core to spare. Default: 0s")
      ->transform(Quiet(Time()))
      ->check(Quiet(CLI::Range(0.0, 1.0)))
      ->type_name("TIME")
      ->envname("ATTND_SPIN")
      ->group(group);
}

void AddLimits(CLI::App* app, Config* config, Raw* raw) {
  const std::string group = "Limits";
  app->add_option("--budget-bytes", raw->budget_bytes,
                  "Memory for requests, payloads and workspace, waiting or running; beyond it they "
                  "are refused with RESOURCE_EXHAUSTED. Accepts 512MiB, 8GiB. Default: half of the "
                  "memory of the cgroup or machine, less below 2 GiB, so that the worst case fits")
      ->transform(Quiet(CLI::AsSizeValue(/*kb_is_1000=*/true)))
      ->check(Quiet(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 50)))
      ->type_name("SIZE")
      ->envname("ATTND_BUDGET_BYTES")
      ->group(group);
  app->add_option("--max-message-bytes", raw->max_message_bytes,
                  "Largest request and largest reply, up to 2GiB - 1, which is what protobuf can "
                  "carry. Default: 1GiB")
      ->transform(Quiet(CLI::AsSizeValue(/*kb_is_1000=*/true)))
      ->check(Quiet(CLI::Range(uint64_t{1024}, (uint64_t{1} << 31) - 1)))
      ->type_name("SIZE")
      ->envname("ATTND_MAX_MESSAGE_BYTES")
      ->group(group);
  app->add_option("--max-queue", config->max_queue_requests,
                  "Requests that may wait; beyond it they are refused with RESOURCE_EXHAUSTED")
      ->check(Quiet(CLI::Range(int64_t{1}, int64_t{1} << 20)))
      ->type_name("N")
      ->capture_default_str()
      ->envname("ATTND_MAX_QUEUE")
      ->group(group);
  app->add_option(
         "--max-batch", config->max_batch_requests,
         "Requests of one batch at most. An idle server never waits for a batch to fill; 1 "
         "runs each request alone")
      ->check(Quiet(CLI::Range(int64_t{1}, int64_t{65536})))
      ->type_name("N")
      ->capture_default_str()
      ->envname("ATTND_MAX_BATCH")
      ->group(group);
  app->add_option("--undeclared-bytes", raw->undeclared_bytes,
                  "Assumed size of a message until it has arrived, if its caller does not declare "
                  "the size in the metadata attnd-message-bytes. Default: 16MiB")
      ->transform(Quiet(CLI::AsSizeValue(/*kb_is_1000=*/true)))
      ->check(Quiet(CLI::Range(uint64_t{1}, (uint64_t{1} << 31) - 1)))
      ->type_name("SIZE")
      ->envname("ATTND_UNDECLARED_BYTES")
      ->group(group);
  app->add_option("--max-parked", config->max_parked,
                  "Calls that may wait, unread, for room in the byte budget; beyond it they are "
                  "refused with RESOURCE_EXHAUSTED. Each holds as much as its flow-control window")
      ->check(Quiet(CLI::Range(0, 65536)))
      ->type_name("N")
      ->capture_default_str()
      ->envname("ATTND_MAX_PARKED")
      ->group(group);
}

// How requests share the machine.
void AddSharing(CLI::App* app, Config* config) {
  const std::string group = "Sharing";
  app->add_option(
         "--max-running", config->max_running,
         "Batches that run at a time at most, so that small requests need not wait for large "
         "ones; one place is reserved for batches of at most 5 ms, one each for 50 ms, 1 s and "
         "20 s. All share the computing threads and the budget")
      ->check(Quiet(CLI::Range(1, 64)))
      ->type_name("N")
      ->capture_default_str()
      ->envname("ATTND_MAX_RUNNING")
      ->group(group);
  app->add_option(
         "--max-priority", config->max_priority,
         "Highest priority (-100 to 100) that callers may give their requests; higher ones "
         "are refused. Callers through a Unix socket may give any")
      ->check(Quiet(CLI::Range(-100, 100)))
      ->type_name("N")
      ->capture_default_str()
      ->envname("ATTND_MAX_PRIORITY")
      ->group(group);
  app->add_option(
         "--max-request-seconds", config->max_request_seconds,
         "Requests that are predicted to compute for longer are refused with "
         "RESOURCE_EXHAUSTED, and a run that has computed for twice that time is stopped; time "
         "spent waiting for other runs does not count: on a GPU, which does not tell it, that is "
         "--max-running times as long. Accepts 30s, 10min; 0 is no limit. "
         "Default: 10min")
      ->transform(Quiet(Time()))
      ->check(Quiet(CLI::Range(0.0, 1e9)))
      ->type_name("TIME")
      ->envname("ATTND_MAX_REQUEST_SECONDS")
      ->group(group);
}

void AddStopping(CLI::App* app, Raw* raw) {
  const std::string group = "Stopping";
  app->add_option("--drain-delay", raw->drain_delay,
                  "Time between reporting NOT_SERVING and closing the listeners, so that load "
                  "balancers notice. Accepts 5s, 500ms. Default: 0s")
      ->transform(Quiet(Time()))
      ->check(Quiet(CLI::Range(0.0, 3600.0)))
      ->type_name("TIME")
      ->envname("ATTND_DRAIN_DELAY")
      ->group(group);
  app->add_option("--drain-timeout", raw->drain_timeout,
                  "Time that work in flight may take before it is cancelled. Default: 30s")
      ->transform(Quiet(Time()))
      ->check(Quiet(CLI::Range(0.0, 3600.0)))
      ->type_name("TIME")
      ->envname("ATTND_DRAIN_TIMEOUT")
      ->group(group);
  app->add_option(
         "--exit-when-stuck", raw->exit_when_stuck,
         "End with exit code 3, without answering open calls, when the transport or a lane has "
         "made no progress for this long, at least 5s, so that a supervisor starts a new server. "
         "In any case, after 4 s /healthz answers 503 and the log names what is stuck. "
         "Default: 0s, never")
      ->transform(Quiet(Time()))
      ->check(CLI::Validator(CheckExitWhenStuck, ""))
      ->type_name("TIME")
      ->envname("ATTND_EXIT_WHEN_STUCK")
      ->group(group);
}

void AddLogging(CLI::App* app, Config* config) {
  const std::string group = "Log";
  app->add_option("--log-level", config->log.level,
                  "debug (a line for every request), info, warning or error")
      ->check(Quiet(CLI::IsMember({"debug", "info", "warning", "error"})))
      ->type_name("NAME")
      ->envname("ATTND_LOG_LEVEL")
      ->group(group);
  app->add_option("--log-format", config->log.format,
                  "Lines on standard error as text for people or json for programs")
      ->check(Quiet(CLI::IsMember({"text", "json"})))
      ->type_name("NAME")
      ->envname("ATTND_LOG_FORMAT")
      ->group(group);
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// The library's error text in one line.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string Version() { return ATTND_VERSION; }

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  Config config;
  Raw raw;
  CLI::App app(kAbout, "attnd-server");
  app.set_version_flag("--version", "attnd-server " + Version());
  app.option_defaults()->always_capture_default();
  AddListening(&app, &config);
  app.add_flag(
      "--probe", config.is_probe,
      "Start no server: query the health of the one at --grpc and exit with 0 if it serves, "
      "else with 1 (for health checks of containers)");
  app.option_defaults()->always_capture_default(false);
  AddComputing(&app, &config, &raw);
  AddLimits(&app, &config, &raw);
  AddSharing(&app, &config);
  AddConnectionOptions(&app, &config.connections);
  AddStopping(&app, &raw);
  app.option_defaults()->always_capture_default();
  AddLogging(&app, &config);
  raw.max_message_bytes = config.max_message_bytes;
  raw.undeclared_bytes = config.undeclared_bytes;
  raw.drain_timeout = 30;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {.text = app.help(), .exit_code = 0};
  } catch (const CLI::CallForVersion&) {
    return {.text = "attnd-server " + Version() + "\n", .exit_code = 0};
  } catch (const CLI::Error& e) {
    return {.text = "attnd-server: " + OneLine(e.what()) + " (--help lists the options)\n",
            .exit_code = 2};
  }
  config.budget_bytes = static_cast<int64_t>(raw.budget_bytes);
  config.max_message_bytes = static_cast<int64_t>(raw.max_message_bytes);
  config.undeclared_bytes = static_cast<int64_t>(raw.undeclared_bytes);
  config.spin = std::chrono::microseconds(static_cast<int64_t>(raw.spin * 1e6));
  config.drain_delay = Milliseconds(raw.drain_delay);
  config.drain_timeout = Milliseconds(raw.drain_timeout);
  config.exit_when_stuck = Milliseconds(raw.exit_when_stuck);
  return {.config = config};
}

}  // namespace attnd
