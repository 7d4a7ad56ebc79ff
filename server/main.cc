// attnd-server: parses its command line, starts, waits for a signal, drains.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <string>
#include <thread>

#include "proto/wire/bytes.h"
#include "server/app.h"
#include "server/config.h"
#include "server/log.h"
#include "server/probe.h"

namespace attnd {
namespace {

// gRPC allocates and frees a block for every 64 KB that it reads. By default glibc returns the end
// of the heap to the system after each large message and faults it in again for the next one; with
// these settings reading is up to twice as fast. One arena, so that all threads reuse freed memory.
void TuneMalloc() {
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 16 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_ARENA_MAX, 1);
}

// The exit code once a device has failed, which --help documents.
constexpr int kDeviceFailed = 4;

// How long the process waits for its last log lines before it ends.
constexpr std::chrono::milliseconds kLastLines{500};

// Blocks the signals before any thread exists: all threads inherit it, and only sigtimedwait
// receives them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A closed terminal does not end the service, and there is no configuration to reload.
  signal(SIGHUP, SIG_IGN);
  return signals;
}

bool WaitForSignal(const sigset_t& signals, std::chrono::milliseconds timeout) {
  const timespec wait = {.tv_sec = timeout.count() / 1000,
                         .tv_nsec = timeout.count() % 1000 * 1000000};
  return sigtimedwait(&signals, nullptr, &wait) > 0;
}

// Ends the process with `code` if a second signal comes or the drain takes too long.
void WatchDrain(const sigset_t& signals, std::chrono::milliseconds limit,
                const std::atomic<bool>& drained, int code) {
  const auto give_up = std::chrono::steady_clock::now() + limit;
  while (!drained.load()) {
    const char* reason = nullptr;
    if (WaitForSignal(signals, std::chrono::milliseconds(50))) {
      reason = "second signal: leaving without answering what is in flight";
    } else if (std::chrono::steady_clock::now() >= give_up && !drained.load()) {
      reason = "the drain does not end: leaving without answering what is in flight";
    }
    if (reason != nullptr) {
      Log(LogLevel::kError, reason);
      FlushLog(kLastLines);
      _exit(code);
    }
  }
}

int Fail(const absl::Status& status) {
  FlushLog(kLastLines);
  std::fprintf(stderr, "attnd-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  const CommandLine command_line = ParseCommandLine(argc, argv);
  if (!command_line.config.has_value()) {
    std::fputs(command_line.text.c_str(), command_line.exit_code == 0 ? stdout : stderr);
    return command_line.exit_code;
  }
  const Config& config = *command_line.config;
  if (config.is_probe) return Probe(config.grpc_addresses.front());
  if (absl::Status status = ConfigureLog(config.log); !status.ok()) return Fail(status);
  FlushLogOnCrash();
  if (config.large_reads) UseLargeReads();
  const sigset_t signals = BlockSignals();

  absl::StatusOr<std::unique_ptr<App>> app = App::Start(config);
  if (!app.ok()) return Fail(app.status());
  while (!(*app)->has_failed() && !WaitForSignal(signals, std::chrono::seconds(1))) {
    (*app)->Tick();
  }
  const bool has_failed = (*app)->has_failed();

  std::atomic<bool> drained = false;
  const auto limit = (*app)->drain_delay() + config.drain_timeout + std::chrono::seconds(5);
  std::thread watch([&] { WatchDrain(signals, limit, drained, has_failed ? kDeviceFailed : 1); });
  (*app)->Drain();
  app->reset();
  drained.store(true);
  watch.join();
  FlushLog(kLastLines);
  return has_failed ? kDeviceFailed : 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  attnd::TuneMalloc();
  return attnd::Main(argc, argv);
}
