#include "server/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "kernels/core/mutex.h"

namespace attnd {
namespace {

// What a line costs beside its bytes: the string and its place in the queue.
constexpr int64_t kLineBytes = 64;

int64_t CostOf(const std::string& line) { return static_cast<int64_t>(line.size()) + kLineBytes; }

// The whole text or false. Somebody else may have made the descriptor non-blocking.
bool WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (written < 0 && errno == EAGAIN) {
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      (void)poll(&ready, 1, /*timeout_ms=*/-1);
    } else if (written == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

// The signals that the process waits for must not find this thread.
bool StartDetached(std::function<void()> run) noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = false;
  try {
    std::thread(std::move(run)).detach();
    started = true;
  } catch (const std::exception&) {
    // The next line tries again.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

struct LogWriter::State {
  const int fd;
  const std::function<std::string(int64_t)> notice;

  Mutex mu;
  CondVar work, idle;
  std::deque<std::string> lines ATTND_GUARDED_BY(mu);
  int64_t bytes ATTND_GUARDED_BY(mu) = 0;
  int64_t untold ATTND_GUARDED_BY(mu) = 0;  // dropped since the last notice
  bool is_started ATTND_GUARDED_BY(mu) = false;
  bool is_closed ATTND_GUARDED_BY(mu) = false;
  std::atomic<int64_t> waiting{0}, dropped{0};

  void Drop(int64_t count) ATTND_REQUIRES(mu) {
    untold += count;
    dropped.fetch_add(count, std::memory_order_relaxed);
  }

  bool Add(std::string line) ATTND_REQUIRES(mu) {
    const int64_t cost = CostOf(line);
    while (!lines.empty() && bytes + cost > kMaxBytes) {
      bytes -= CostOf(lines.front());
      lines.pop_front();
      waiting.fetch_sub(1);
      Drop(1);
    }
    if (cost > kMaxBytes) return false;
    try {
      lines.push_back(std::move(line));
    } catch (const std::exception&) {
      return false;
    }
    bytes += cost;
    waiting.fetch_add(1);
    return true;
  }

  // The next line, with the notice of what is missing before it. False: there is none to come.
  bool Take(std::string* line) ATTND_REQUIRES(mu) {
    while (lines.empty()) {
      if (is_closed) return false;
      work.Wait(&mu);
    }
    *line = std::move(lines.front());
    lines.pop_front();
    bytes -= CostOf(*line);
    return true;
  }

  void Loop() {
    pthread_setname_np(pthread_self(), "log");
    std::string line;
    for (;;) {
      int64_t lost = 0;
      {
        const MutexLock lock(&mu);
        if (!Take(&line)) return;
        lost = std::exchange(untold, 0);
      }
      const bool written = (lost == 0 || Tell(lost)) && WriteAll(fd, line);
      const MutexLock lock(&mu);
      if (!written) Drop(1);
      if (waiting.fetch_sub(1) == 1) idle.NotifyAll();
    }
  }

  bool Tell(int64_t lost) noexcept {
    try {
      return WriteAll(fd, notice(lost) + "\n");
    } catch (const std::exception&) {
      return true;  // no memory for it: the count of all is in dropped
    }
  }
};

LogWriter::LogWriter(int fd, std::function<std::string(int64_t)> notice)
    : state_(new State{.fd = fd, .notice = std::move(notice)}) {}

LogWriter::~LogWriter() {
  const MutexLock lock(&state_->mu);
  state_->is_closed = true;
  state_->work.NotifyOne();
}

void LogWriter::Put(std::string line) noexcept {
  const MutexLock lock(&state_->mu);
  if (!state_->Add(std::move(line))) state_->Drop(1);
  if (!state_->is_started) {
    state_->is_started = StartDetached([state = state_] { state->Loop(); });
  }
  state_->work.NotifyOne();
}

bool LogWriter::Flush(std::chrono::milliseconds timeout) noexcept {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(&state_->mu);
  while (state_->waiting.load() > 0 && std::chrono::steady_clock::now() < until) {
    state_->idle.WaitUntil(&state_->mu, until);
  }
  return state_->waiting.load() == 0;
}

int64_t LogWriter::dropped() const noexcept {
  return state_->dropped.load(std::memory_order_relaxed);
}

int64_t LogWriter::waiting() const noexcept { return state_->waiting.load(); }

}  // namespace attnd
