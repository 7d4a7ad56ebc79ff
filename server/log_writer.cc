#include "server/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace attnd {
namespace {

// Writes the whole text, or returns false. Another process may have made the descriptor
// non-blocking.
bool WriteAll(int fd, spdlog::string_view_t text) {
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

// Threads inherit the mask: the signals that the process waits for must not reach them.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

std::shared_ptr<spdlog::details::thread_pool> StartThread(size_t most_lines) {
  const AllSignalsBlocked blocked;
  return std::make_shared<spdlog::details::thread_pool>(
      most_lines, /*threads_n=*/1, [] { pthread_setname_np(pthread_self(), "log"); });
}

// Writes whole lines without changes. spdlog's own sinks drop lines without an error if the
// descriptor is non-blocking.
class FdSink : public spdlog::sinks::sink {
 public:
  FdSink(int fd, std::function<std::string(int64_t)> notice, spdlog::details::thread_pool* pool)
      : fd_(fd), notice_(std::move(notice)), pool_(pool) {}

  // Called on the pool's thread only.
  void log(const spdlog::details::log_msg& line) override {
    ReportLost();
    Count(WriteAll(fd_, line.payload));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  // Counts a line that was written, or dropped for another reason than a full queue.
  void Count(bool is_written) {
    if (!is_written) failed.fetch_add(1);
    ended.fetch_add(1);
  }

  std::atomic<int64_t> ended{0}, failed{0};
  std::atomic<int64_t> overrun{0};  // as of the last line that was begun

 private:
  // Exact once the queue is empty: a queue that overruns is full, so a line follows each loss.
  void ReportLost() noexcept {
    overrun.store(static_cast<int64_t>(pool_->overrun_counter()));
    const int64_t all = overrun.load() + failed.load();
    const int64_t lost = all - std::exchange(reported_, all);
    if (lost == 0) return;
    try {
      (void)WriteAll(fd_, notice_(lost));
    } catch (const std::exception&) {
      // No memory for the notice: dropped() has the total.
    }
  }

  const int fd_;
  const std::function<std::string(int64_t)> notice_;
  spdlog::details::thread_pool* const pool_;
  int64_t reported_ = 0;
};

}  // namespace

struct LogWriter::State {
  // Destroyed last: its thread ends after it has written the waiting lines.
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<FdSink> sink;
  std::shared_ptr<spdlog::async_logger> logger;
  std::atomic<int64_t> put{0};
};

LogWriter::LogWriter(int fd, std::function<std::string(int64_t)> notice) : state_(new State) {
  state_->pool = StartThread(kMostLines);
  state_->sink = std::make_shared<FdSink>(fd, std::move(notice), state_->pool.get());
  state_->logger = std::make_shared<spdlog::async_logger>(
      "attnd", state_->sink, state_->pool, spdlog::async_overflow_policy::overrun_oldest);
}

LogWriter::~LogWriter() = default;

void LogWriter::Put(const std::string& line) noexcept {
  state_->put.fetch_add(1);
  if (line.size() > kMostLineBytes) return state_->sink->Count(/*is_written=*/false);
  try {
    state_->logger->log(spdlog::level::info, spdlog::string_view_t(line));
  } catch (const std::exception&) {
    // No memory.
    state_->sink->Count(/*is_written=*/false);
  }
}

bool LogWriter::Flush(std::chrono::milliseconds timeout) const noexcept {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (waiting() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return waiting() == 0;
}

int64_t LogWriter::dropped() const {
  return static_cast<int64_t>(state_->pool->overrun_counter()) + state_->sink->failed.load();
}

int64_t LogWriter::waiting() const noexcept {
  // Read in this order, the ended lines are never more than the put ones.
  const int64_t ended = state_->sink->ended.load() + state_->sink->overrun.load();
  return state_->put.load() - ended;
}

}  // namespace attnd
