// A call of every method, and a function that runs one on a new stream.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/method/registry.h"
#include "tests/engine/cpu_engine.h"

namespace attnd::testing {

// A call of N queries and keys that owns its data.
struct Request {
  Call call;
  std::map<std::string, std::vector<float>> floats;
  std::vector<uint8_t> layout;

  void Add(const std::string& name, const Shape& shape) {
    std::vector<float>& data = floats[name];
    std::minstd_rand random(static_cast<unsigned>(floats.size()));
    data.resize(static_cast<size_t>(shape.size()));
    for (float& x : data) x = static_cast<float>(random()) / 2e9f - 0.5f;
    call.tensors[name] = DenseView(data.data(), DType::kF32, shape);
  }
};

struct MethodCase {
  std::string method;
  OptionMap options;
};

using Ints = std::vector<int64_t>;

// A value for an option that has no default, for N tokens.
inline OptionValue RequiredValue(const OptionInfo& option, int64_t N) {
  if (option.name == "axis") return int64_t{0};
  if (option.name == "window_left") return int64_t{70};
  if (option.type == OptionType::kEnum) return option.enum_values[0];
  if (option.type == OptionType::kFloat) return 1.0;
  if (option.type == OptionType::kInt) return int64_t{8};
  int64_t side = 1;
  while (side * side < N) side *= 2;
  return Ints{side, side};  // a grid
}

// One of every method of the registry: its required options have a value, all others their default.
// N is a power of four.
inline std::vector<MethodCase> EveryMethod(int64_t N) {
  std::vector<MethodCase> cases;
  for (const auto& method : AllMethods()) {
    MethodCase& c = cases.emplace_back(MethodCase{method->info().id, {}});
    for (const OptionInfo& option : method->info().options) {
      const bool is_required = option.default_text.rfind("required", 0) == 0;
      if (is_required) c.options[option.name] = RequiredValue(option, N);
    }
    // Some of the methods run with causal masks.
    if (c.method == "softmax" || c.method == "local" || c.method == "linear_attention") {
      c.options["causal"] = true;
    }
  }
  return cases;
}

// Whether q serves as the keys, too, so that k must not be sent.
inline bool SharesQk(const MethodCase& c) {
  for (const auto& method : AllMethods()) {
    const MethodInfo& info = method->info();
    if (info.id != c.method) continue;
    const auto is_k = [](const TensorInfo& input) { return input.name == "k"; };
    if (std::none_of(info.inputs.begin(), info.inputs.end(), is_k)) return true;
    const auto sent = c.options.find("shared_qk");
    if (sent != c.options.end()) return sent->second == OptionValue(true);
    for (const OptionInfo& option : info.options) {
      if (option.name == "shared_qk") return option.default_text == "true";
    }
  }
  return false;
}

inline std::unique_ptr<Request> MakeRequest(const MethodCase& c, Direction direction, int64_t N,
                                            int64_t H = 2) {
  auto request = std::make_unique<Request>();
  request->call.method = c.method;
  request->call.options = c.options;
  request->call.direction = direction;
  const Shape shape = {1, H, N, 64};
  for (const char* name : {"q", "k", "v"}) {
    if (name[0] != 'k' || !SharesQk(c)) request->Add(name, shape);
  }
  if (direction == Direction::kBackward) request->Add("grad_out", shape);
  if (c.method == "block_sparse") {
    const int64_t blocks = (N + 63) / 64;
    request->layout.resize(static_cast<size_t>(blocks * blocks));
    for (size_t i = 0; i < request->layout.size(); ++i) request->layout[i] = i % 3 == 0;
    request->call.tensors["layout"] =
        DenseView(request->layout.data(), DType::kU8, {1, blocks, blocks});
  }
  return request;
}

inline std::unique_ptr<Engine> NewEngine(bool poison_memory = true) {
  return CpuEngine({.threads = 2, .retain_bytes = 0, .poison_memory = poison_memory});
}

// Plans the call and runs it on a new stream.
inline absl::StatusOr<Execution> Execute(Engine& engine, const Request& request,
                                         RunControl* control) {
  auto plan = engine.MakePlan(request.call);
  if (!plan.ok()) return plan.status();
  Stream stream(engine.device(), &engine.device().memory(), control);
  const Problem problem{*plan, request.call.tensors};
  return engine.Execute(stream, {&problem, 1});
}

}  // namespace attnd::testing
