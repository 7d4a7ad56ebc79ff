// The only function of its file, so that a program may link other devices in its place.
#include "kernels/engine/devices.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/engine/library_test.h"
#include "kernels/engine/self_test_cache.h"

namespace attnd {
namespace {

void AddLine(const std::string& line, std::string* lines) {
  absl::StrAppend(lines, lines->empty() ? "" : "; ", line);
}

// The same reason may hold for every device.
void AddOnce(const absl::Status& status, std::string* lines) {
  if (!absl::StrContains(*lines, status.message())) AddLine(std::string(status.message()), lines);
}

// Adds what a library proves.
void ProveLibrary(const LibraryTest& test, Device& device, Device& processor,
                  SelfTestReport* report) {
  const CudaLibrary before = CudaLibraryOf(device, test.name);
  if (before.name.empty() || report->is_unusable || !device.failure().empty()) return;
  const size_t first = report->rows.size();
  RunLibraryTest(test, device, processor, report);
  const CudaLibrary after = CudaLibraryOf(device, test.name);
  for (size_t i = first; i < report->rows.size(); ++i) {
    std::string& failure = report->rows[i].failure;
    // Own kernels have served instead.
    if (failure.empty()) failure = after.why_not;
    if (failure.empty() && after.calls == before.calls) {
      failure = "the library computes nothing of the test";
    }
  }
  Conclude(report);
}

// What the self-test finds, or found in an earlier process.
SelfTestReport Prove(Device& device, Device& processor, const std::string& identity,
                     const DeviceOptions& options, std::string* cache_note) {
  const SelfTestCache cache(options.cache_folder, options.version);
  if (options.proof == DeviceOptions::Proof::kCached) {
    absl::StatusOr<SelfTestReport> found = cache.Find(identity);
    if (found.ok()) return *std::move(found);
    if (!absl::IsNotFound(found.status())) AddOnce(found.status(), cache_note);
  }
  SelfTestReport report = SelfTest(device, processor);
  for (const LibraryTest& test : LibraryTests()) ProveLibrary(test, device, processor, &report);
  if (report.is_lasting) {
    if (const absl::Status kept = cache.Keep(identity, report); !kept.ok()) {
      AddOnce(kept, cache_note);
    }
  }
  return report;
}

// One line: what a report found of the device of this name; empty: nothing is wrong.
std::string FoundOf(const std::string& name, const SelfTestReport& report) {
  std::string found;
  for (const SelfTestRow& row : report.rows) {
    if (row.failure.empty()) continue;
    const char* const what = report.is_unusable ? " fails: " : " is switched off: ";
    AddLine(absl::StrCat(name, ": ", row.primitive, " of ", row.dtype, what, row.failure), &found);
  }
  if (!report.status.ok()) AddLine(absl::StrCat(name, ": ", report.status.message()), &found);
  if (!found.empty() && !report.cached_from.empty()) {
    AddLine(absl::StrCat("found at ", report.cached_from, ", --self-test=fresh tests again"),
            &found);
  }
  return found;
}

// The device of this number if it agrees with the processor by this report, without the primitives
// and the libraries that do not. Null: it is of no use.
std::unique_ptr<Device> Proven(std::unique_ptr<Device> device, int ordinal, CudaOptions options,
                               const SelfTestReport& report) {
  if (report.is_unusable || !report.status.ok()) return nullptr;
  if (report.failed.empty() && report.failed_libraries.empty()) return device;
  device = nullptr;
  options.devices = {ordinal};
  options.declined = report.failed;
  options.unused_libraries.insert(options.unused_libraries.end(), report.failed_libraries.begin(),
                                  report.failed_libraries.end());
  CudaDevices again = NewCudaDevices(options);
  return again.devices.empty() ? nullptr : std::move(again.devices[0]);
}

}  // namespace

absl::StatusOr<Devices> NewDevices(const DeviceOptions& options) {
  using Kinds = DeviceOptions::Kinds;
  std::unique_ptr<Device> processor;
  if (options.kinds != Kinds::kCuda || options.proof != DeviceOptions::Proof::kNone) {
    absl::StatusOr<std::unique_ptr<Device>> made = NewCpuDevice(options.cpu);
    ATTND_RETURN_IF_ERROR(made.status());
    processor = *std::move(made);
  }
  Devices devices;
  if (options.kinds != Kinds::kCpu) {
    CudaOptions cuda_options = options.cuda;
    if (options.proof == DeviceOptions::Proof::kNone) {
      for (const LibraryTest& test : LibraryTests()) {
        cuda_options.unused_libraries.push_back(test.part);
      }
    }
    CudaDevices cuda = NewCudaDevices(cuda_options);
    // A build for the processor lacks a device only where one is asked for.
    if (cuda.is_built || options.kinds == Kinds::kCuda) devices.note = std::move(cuda.why_not);
    devices.unusable = std::move(cuda.unusable);
    // Before others take their time to be proven.
    if (options.kinds == Kinds::kCuda && cuda.devices.size() < options.cuda.devices.size()) {
      return absl::UnavailableError(devices.note);
    }
    for (size_t i = 0; i < cuda.devices.size(); ++i) {
      std::unique_ptr<Device> device = std::move(cuda.devices[i]);
      for (const LibraryTest& test : LibraryTests()) {
        const CudaLibrary library = CudaLibraryOf(*device, test.name);
        const bool is_told = std::string_view(test.part) != test.name;  // with the whole
        if (library.why_not.empty() || is_told) continue;
        AddLine(absl::StrCat(device->info().name, ": ", library.why_not), &devices.note);
      }
      SelfTestReport report;
      if (options.proof != DeviceOptions::Proof::kNone) {
        const std::string name = device->info().name;
        report = Prove(*device, *processor, cuda.identities[i], options, &devices.cache_note);
        const std::string found = FoundOf(name, report);
        if (!found.empty()) AddLine(found, &devices.note);
        device = Proven(std::move(device), cuda.ordinals[i], options.cuda, report);
        if (device == nullptr) devices.unusable.push_back(name);
      }
      if (device == nullptr) continue;
      devices.list.push_back(std::move(device));
      devices.self_tests.push_back(std::move(report));
    }
  }
  if (options.kinds == Kinds::kCuda) {
    const bool lacks_named = devices.list.size() < options.cuda.devices.size();
    if (devices.list.empty() || lacks_named) return absl::UnavailableError(devices.note);
  } else {
    devices.list.insert(devices.list.begin(), std::move(processor));
    devices.self_tests.insert(devices.self_tests.begin(), SelfTestReport());
  }
  return devices;
}

}  // namespace attnd
