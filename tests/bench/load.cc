// The load generator: see --help.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/load_options.h"
#include "tests/bench/load_run.h"

namespace attnd::bench {
namespace {

struct Named {
  const char* name;
  double percent;
};
constexpr Named kPercentiles[] = {{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}};

double Gigabytes(const LoadReport& report) {
  return static_cast<double>(report.sent_bytes + report.received_bytes) / 1e9;
}

nlohmann::ordered_json JsonOf(const LoadReport& report) {
  nlohmann::ordered_json latency;
  for (const auto& [name, percent] : kPercentiles) {
    latency[name] = static_cast<double>(report.latency.Percentile(percent)) / 1e9;
  }
  latency["max"] = static_cast<double>(report.latency.max()) / 1e9;
  nlohmann::ordered_json refused = nlohmann::ordered_json::object();
  for (const auto& [code, count] : report.refused) {
    refused[code] = {{"count", count}, {"reason", report.reasons.at(code)}};
  }
  return {{"requests", report.requests},
          {"ok", report.ok},
          {"refused", refused},
          {"mismatches", report.mismatches},
          {"seconds", report.seconds},
          {"requests_per_second", static_cast<double>(report.ok) / report.seconds},
          {"tokens_per_second", static_cast<double>(report.tokens) / report.seconds},
          {"gigabytes_per_second", Gigabytes(report) / report.seconds},
          {"sent_bytes", report.sent_bytes},
          {"received_bytes", report.received_bytes},
          {"latency_seconds", latency}};
}

void PrintTable(const LoadReport& report, bool checked) {
  std::printf("requests  %lld in %.2f s, %lld ok\n", static_cast<long long>(report.requests),
              report.seconds, static_cast<long long>(report.ok));
  std::printf("rate      %.1f requests/s, %.4g tokens/s, %.3f GB/s\n",
              static_cast<double>(report.ok) / report.seconds,
              static_cast<double>(report.tokens) / report.seconds,
              Gigabytes(report) / report.seconds);
  std::printf("latency  ");
  for (const auto& [name, percent] : kPercentiles) {
    std::printf(" %s %.3f ms,", name,
                static_cast<double>(report.latency.Percentile(percent)) / 1e6);
  }
  std::printf(" max %.3f ms\n", static_cast<double>(report.latency.max()) / 1e6);
  for (const auto& [code, count] : report.refused) {
    std::printf("refused   %lld %s, first: %s\n", static_cast<long long>(count), code.c_str(),
                report.reasons.at(code).c_str());
  }
  if (checked) {
    std::printf("check     %lld of %lld replies differ\n",
                static_cast<long long>(report.mismatches), static_cast<long long>(report.ok));
  }
}

int Main(int argc, const char* const* argv) {
  client::TuneMalloc();
  const LoadCommandLine command = ParseLoadCommandLine(argc, argv);
  if (command.exit_code.has_value()) {
    (*command.exit_code == 0 ? std::cout : std::cerr) << command.text;
    return *command.exit_code;
  }
  const auto report = RunLoad(command.options);
  if (!report.ok()) {
    std::cerr << "load: " << report.status() << '\n';
    return 1;
  }
  if (command.options.prints_json) {
    std::cout << JsonOf(*report).dump(2) << '\n';
  } else {
    PrintTable(*report, command.options.checks);
  }
  return report->ok > 0 && report->mismatches == 0 ? 0 : 1;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) { return attnd::bench::Main(argc, argv); }
