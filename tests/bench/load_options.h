// The options of the load generator.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attnd/client.h"

namespace attnd::bench {

struct MethodShare {
  client::MethodSpec method;
  double weight = 1;
};
struct LengthShare {
  int64_t N = 0;
  double weight = 1;
};

struct LoadOptions {
  std::string target = "127.0.0.1:8001";
  std::vector<MethodShare> methods;
  std::vector<LengthShare> lengths;
  client::Direction direction = client::Direction::kForward;
  int64_t heads = 8, dim = 64;
  client::DType::Value dtype = client::DType::float32;

  int concurrency = 1;  // closed loop, unless there is a rate
  std::optional<double> rate;
  bool is_poisson = true;  // else arrivals are evenly spaced
  double duration_seconds = 10;
  double timeout_seconds = 0;  // 0: none
  int connections = 1;
  bool uses_pipeline = false;
  int max_attempts = 1;
  int spin_us = 0;
  uint64_t seed = 1;

  bool checks = false;
  bool prints_json = false;
};

// Either options, or text to print and a code to exit with.
struct LoadCommandLine {
  LoadOptions options;
  std::optional<int> exit_code;
  std::string text;
};
LoadCommandLine ParseLoadCommandLine(int argc, const char* const* argv);

}  // namespace attnd::bench
