#include "server/config_device.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd {
namespace {

constexpr absl::string_view kCuda = "cuda";
constexpr int kMostOrdinal = 63;

// The numbers of "cuda:0,1"; none: they are not such a list.
std::optional<std::vector<int>> OrdinalsOf(absl::string_view text) {
  std::vector<int> ordinals;
  for (const absl::string_view part : absl::StrSplit(text.substr(kCuda.size() + 1), ',')) {
    int ordinal = 0;
    const bool is_number =
        !part.empty() && part.size() <= 2 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
        absl::SimpleAtoi(part, &ordinal);
    if (!is_number || ordinal > kMostOrdinal || std::ranges::count(ordinals, ordinal) > 0) {
      return std::nullopt;
    }
    ordinals.push_back(ordinal);
  }
  return ordinals;
}

std::optional<DeviceOptions::Proof> ParseSelfTest(const std::string& text) {
  using Proof = DeviceOptions::Proof;
  static const std::map<std::string, Proof> words = {
      {"fresh", Proof::kFresh}, {"true", Proof::kCached}, {"on", Proof::kCached},
      {"yes", Proof::kCached},  {"1", Proof::kCached},    {"false", Proof::kNone},
      {"off", Proof::kNone},    {"no", Proof::kNone},     {"0", Proof::kNone}};
  const auto found = words.find(absl::AsciiStrToLower(text));
  return found == words.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::string CheckDevice(const std::string& text) {
  if (text == "auto" || text == "cpu" || text == kCuda) return "";
  if (absl::StartsWith(text, "cuda:") && OrdinalsOf(text).has_value()) return "";
  return "must be auto, cpu, cuda, or cuda: with numbers of devices from 0 to 63, each once, as in "
         "cuda:0,1, got " +
         text;
}

void SetDevices(const std::string& text, DeviceOptions* options) {
  using Kinds = DeviceOptions::Kinds;
  options->kinds = text == "auto" ? Kinds::kAuto : text == "cpu" ? Kinds::kCpu : Kinds::kCuda;
  if (absl::StartsWith(text, "cuda:")) options->cuda.devices = *OrdinalsOf(text);
}

std::string CheckSelfTest(const std::string& text) {
  return ParseSelfTest(text).has_value() ? "" : "must be true, false or fresh, got " + text;
}

DeviceOptions::Proof ProofOf(const std::string& text) { return *ParseSelfTest(text); }

std::string CacheFolder(const std::string& given) {
  if (!given.empty()) return given;
  // A relative path is to be ignored.
  const char* const caches = std::getenv("XDG_CACHE_HOME");
  if (caches != nullptr && caches[0] == '/') return absl::StrCat(caches, "/attnd");
  const char* const home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? absl::StrCat(home, "/.cache/attnd") : "";
}

}  // namespace attnd
