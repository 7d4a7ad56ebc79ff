#include "server/process.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace attnd {
namespace {

// For HTTP connections, refused connections until they have their reason, and gRPC itself.
constexpr int64_t kReservedFiles = 160;

// The fields of /proc/self/stat after the command, which may hold spaces and brackets: field 3 is
// [0].
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  while (file >> word) {
    if (word == "btime") {
      double seconds = 0;
      file >> seconds;
      return seconds;
    }
  }
  return 0;
}

int64_t CountOpenFiles() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int64_t count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  return count - 1;  // without the descriptor of the directory
}

// The number in a file; "max" or an unreadable file means no limit.
int64_t ReadLimit(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : INT64_MAX;
}

// The tightest limit of `path` and its ancestors below `mount`. A process in a container may see
// the path of its group on the host: directories that do not exist set no limit.
int64_t CgroupLimit(const std::string& mount, std::string path, const std::string& file) {
  int64_t limit = INT64_MAX;
  for (;;) {
    limit = std::min(limit, ReadLimit(mount + path + "/" + file));
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return limit;
    path.resize(slash);
  }
}

// Lines are "4:memory:/path" (version 1) and "0::/path" (version 2).
int64_t CgroupMemoryLimit(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  int64_t limit = INT64_MAX;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers == ",,") limit = std::min(limit, CgroupLimit(mount, path, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, CgroupLimit(mount + "/memory", path, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

int64_t MachineMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string word;
  int64_t kib = 0;
  while (file >> word) {
    if (word == "MemTotal:" && file >> kib) return kib * 1024;
  }
  return INT64_MAX;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  const std::vector<std::string> fields = StatFields();
  if (fields.size() > 21) {
    const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    stats.cpu_seconds = (std::stod(fields[11]) + std::stod(fields[12])) / ticks;
    stats.threads = std::stoll(fields[17]);
    stats.start_time_seconds = BootTimeSeconds() + std::stod(fields[19]) / ticks;
    stats.virtual_bytes = std::stoll(fields[20]);
    stats.resident_bytes = std::stoll(fields[21]) * sysconf(_SC_PAGESIZE);
  }
  stats.open_fds = CountOpenFiles();
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) stats.max_fds = static_cast<int64_t>(files.rlim_cur);
  return stats;
}

void RaiseFileLimit() {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
}

int FileLimitedConnections(int wanted) {
  const ProcessStats stats = ReadProcessStats();
  if (stats.max_fds <= 0) return wanted;
  const int64_t room = std::max<int64_t>(0, stats.max_fds - stats.open_fds);
  return static_cast<int>(
      std::clamp<int64_t>(room - std::min(kReservedFiles, room / 2), 1, wanted));
}

int64_t UsableMemoryBytes(const std::string& root) {
  const int64_t bytes = std::min(MachineMemory(root), CgroupMemoryLimit(root));
  return bytes == INT64_MAX ? 0 : bytes;
}

}  // namespace attnd
