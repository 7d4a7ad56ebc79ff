#include "kernels/engine/self_test_cache.h"

#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/engine/library_test.h"

namespace attnd {
namespace {

using nlohmann::json;

// A result takes 20 KB; what is larger is something else.
constexpr size_t kMostBytes = 1 << 20;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

absl::Status Failed(absl::string_view what, const std::string& path, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("self-test: cannot ", what, " ", path, ": ", why));
}

// The build id in the notes of a loaded object: the bits of a rebuilt program have another one.
std::string BuildIdOf(const dl_phdr_info& object, const ElfW(Phdr) & part) {
  const auto* at = reinterpret_cast<const std::byte*>(object.dlpi_addr + part.p_vaddr);
  const std::byte* const end = at + part.p_memsz;
  const auto padded = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
  while (at + sizeof(ElfW(Nhdr)) <= end) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof(note));
    const std::byte* const name = at + sizeof(note);
    const std::byte* const value = name + padded(note.n_namesz);
    at = value + padded(note.n_descsz);
    const bool is_build_id = note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && at <= end &&
                             std::memcmp(name, "GNU", 4) == 0;
    if (!is_build_id) continue;
    return absl::BytesToHexString(
        {reinterpret_cast<const char*>(value), static_cast<size_t>(note.n_descsz)});
  }
  return {};
}

struct Search {
  uintptr_t code;
  std::string build_id;
};

// A step of dl_iterate_phdr: other than 0 ends it.
int SearchObject(dl_phdr_info* object, size_t, void* search_pointer) {
  auto& search = *static_cast<Search*>(search_pointer);
  const std::span parts(object->dlpi_phdr, object->dlpi_phnum);
  const bool is_ours = std::ranges::any_of(parts, [&](const ElfW(Phdr) & part) {
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    return part.p_type == PT_LOAD && search.code >= begin && search.code < begin + part.p_memsz;
  });
  if (!is_ours) return 0;
  for (const ElfW(Phdr) & part : parts) {
    if (part.p_type == PT_NOTE && search.build_id.empty()) {
      search.build_id = BuildIdOf(*object, part);
    }
  }
  return 1;
}

// Of the program or the library that this function is part of.
std::string OwnBuildId() {
  Search search{.code = reinterpret_cast<uintptr_t>(&OwnBuildId), .build_id = {}};
  dl_iterate_phdr(SearchObject, &search);
  return search.build_id;
}

// FNV-1a: names of files must not change with the library.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// UTC, RFC 3339, as in the log.
std::string DateOf(time_t seconds) {
  tm parts;
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

json ToJson(const SelfTestReport& report) {
  json rows = json::array();
  for (const SelfTestRow& row : report.rows) {
    rows.push_back({{"primitive", row.primitive},
                    {"dtype", row.dtype},
                    {"launches", row.launches},
                    // null, where a result is not finite and the other one is.
                    {"worst_error", row.worst_error},
                    {"failure", row.failure},
                    {"declined", row.is_declined}});
  }
  return {{"rows", std::move(rows)}, {"seconds", report.seconds}, {"unusable", report.is_unusable}};
}

// The value of a member; null: there is none.
const json& Member(const json& object, const char* name) {
  static const json none;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? none : *found;
}

bool Read(const json& value, std::string* text) {
  if (!value.is_string()) return false;
  *text = value.get<std::string>();
  return true;
}
bool Read(const json& value, bool* statement) {
  if (!value.is_boolean()) return false;
  *statement = value.get<bool>();
  return true;
}
bool Read(const json& value, double* number) {
  if (!value.is_number() || value.get<double>() < 0) return false;
  *number = value.get<double>();
  return true;
}

std::optional<SelfTestRow> RowOf(const json& value) {
  SelfTestRow row;
  double launches = 0;
  const json& error = Member(value, "worst_error");
  row.worst_error = std::numeric_limits<double>::infinity();
  const bool is_row = Read(Member(value, "primitive"), &row.primitive) &&
                      Read(Member(value, "dtype"), &row.dtype) &&
                      Read(Member(value, "launches"), &launches) && launches <= 1e9 &&
                      (error.is_null() || Read(error, &row.worst_error)) &&
                      Read(Member(value, "failure"), &row.failure) &&
                      Read(Member(value, "declined"), &row.is_declined) &&
                      (LibraryTestOf(row.primitive) != nullptr ||
                       std::ranges::count(PrimitiveNames(), row.primitive) == 1);
  row.launches = static_cast<int>(launches);
  // Only a failure explains what is not finite.
  if (!is_row || (row.failure.empty() && !std::isfinite(row.worst_error))) return std::nullopt;
  return row;
}

std::optional<SelfTestReport> ReportOf(const json& value) {
  SelfTestReport report;
  const json& rows = Member(value, "rows");
  if (!rows.is_array() || rows.empty() || !Read(Member(value, "seconds"), &report.seconds) ||
      !Read(Member(value, "unusable"), &report.is_unusable)) {
    return std::nullopt;
  }
  for (const json& one : rows) {
    std::optional<SelfTestRow> row = RowOf(one);
    if (!row.has_value()) return std::nullopt;
    report.rows.push_back(*std::move(row));
  }
  Conclude(&report);
  return report;
}

// The bytes of a file and its date. Opened without waiting: in its place there may be a pipe.
struct Contents {
  std::string bytes, date;
};
absl::StatusOr<Contents> ReadFile(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return absl::NotFoundError(path);
  struct stat facts;
  if (file.get() < 0 || fstat(file.get(), &facts) != 0) {
    return Failed("read", path, std::strerror(errno));
  }
  if (!S_ISREG(facts.st_mode)) return Failed("use", path, "it is not a file");
  if (facts.st_uid != geteuid()) return Failed("use", path, "it belongs to another user");
  Contents contents{.bytes = std::string(kMostBytes + 1, '\0'), .date = DateOf(facts.st_mtime)};
  size_t filled = 0;
  while (filled < contents.bytes.size()) {
    const ssize_t got =
        read(file.get(), contents.bytes.data() + filled, contents.bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path, std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  if (filled > kMostBytes) return Failed("use", path, "it is too large");
  contents.bytes.resize(filled);
  return contents;
}

// By a file beside it, which takes its name when it is whole.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  std::string draft = path + ".XXXXXX";
  const File file(mkostemp(draft.data(), O_CLOEXEC));
  if (file.get() < 0) return Failed("write", path, std::strerror(errno));
  bool is_written = true;
  while (is_written && !bytes.empty()) {
    const ssize_t put = write(file.get(), bytes.data(), bytes.size());
    if (put > 0) bytes.remove_prefix(static_cast<size_t>(put));
    is_written = put > 0 || (put < 0 && errno == EINTR);
  }
  if (is_written && rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const std::string why = std::strerror(errno);
  unlink(draft.c_str());
  return Failed("write", path, why);
}

}  // namespace

SelfTestCache::SelfTestCache(std::string folder, std::string version)
    : folder_(std::move(folder)), version_(std::move(version)), program_(OwnBuildId()) {}

std::string SelfTestCache::PathOf(const std::string& device) const {
  return absl::StrCat(folder_, "/self-test-", absl::Hex(HashOf(device), absl::kZeroPad16), ".json");
}

absl::Status SelfTestCache::Check() const {
  if (folder_.empty()) {
    return absl::FailedPreconditionError("self-test: there is no folder for its result");
  }
  if (program_.empty()) {
    return absl::FailedPreconditionError(
        "self-test: its result cannot be kept, the program has no build id");
  }
  return absl::OkStatus();
}

absl::StatusOr<SelfTestReport> SelfTestCache::Find(const std::string& device) const {
  ATTND_RETURN_IF_ERROR(Check());
  const std::string path = PathOf(device);
  absl::StatusOr<Contents> file = ReadFile(path);
  ATTND_RETURN_IF_ERROR(file.status());
  const json value = json::parse(file->bytes, /*cb=*/nullptr, /*allow_exceptions=*/false);
  std::string of_device, of_version, of_program;
  if (!Read(Member(value, "device"), &of_device) || !Read(Member(value, "version"), &of_version) ||
      !Read(Member(value, "program"), &of_program)) {
    return Failed("use", path, "it is damaged");
  }
  if (of_device != device || of_version != version_ || of_program != program_) {
    return absl::NotFoundError(path);
  }
  std::optional<SelfTestReport> report = ReportOf(value);
  if (!report.has_value()) return Failed("use", path, "it is damaged");
  report->cached_from = file->date;
  return *std::move(report);
}

absl::Status SelfTestCache::Keep(const std::string& device, const SelfTestReport& report) const {
  assert(report.is_lasting);
  ATTND_RETURN_IF_ERROR(Check());
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return Failed("make", folder_, error.message());
  json value = ToJson(report);
  value["device"] = device;
  value["version"] = version_;
  value["program"] = program_;
  return ReplaceFile(PathOf(device),
                     value.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace attnd
