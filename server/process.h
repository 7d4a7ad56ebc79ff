// Facts of the operating system about this process and the memory that it may use.
#pragma once

#include <cstdint>
#include <string>

namespace attnd {

// A value that cannot be read is 0.
struct ProcessStats {
  double cpu_seconds = 0;         // user and system
  double start_time_seconds = 0;  // since the epoch
  int64_t resident_bytes = 0, virtual_bytes = 0;
  int64_t open_fds = 0, max_fds = 0;
  int64_t threads = 0;
};

ProcessStats ReadProcessStats();

// Raises the soft limit of open files to the hard one, as far as the system allows.
void RaiseFileLimit();

// How many connections the limit of open files allows, at most `wanted`. Descriptors for open files
// and for later pages, listeners and files are subtracted.
int FileLimitedConnections(int wanted);

// The machine's memory or the limit of the cgroup (version 1 or 2, the tightest of its ancestors),
// whichever is less; 0 if neither can be read. `root` is put before /proc and /sys: for tests.
int64_t UsableMemoryBytes(const std::string& root = "");

}  // namespace attnd
