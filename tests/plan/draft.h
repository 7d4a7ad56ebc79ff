// Requests at the ends of their ranges, derived from the descriptions of methods: their tables of
// options, the declared shapes of their tensors, and the texts of their refusals.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/engine/engine.h"

namespace attnd::testing {

// Values of a list of lengths, offsets or ends of sequences.
enum class Fill : uint8_t { kMost, kLeast, kEach /* as different as can be */ };

// A request before its tensors have shapes.
struct Draft {
  const Method* method = nullptr;
  Direction direction = Direction::kForward;
  std::map<std::string, int64_t> sizes;  // by letter of the declared shapes
  OptionMap options;
  std::map<std::string, Fill> tensors;  // sent beside those that are required

  std::string Text() const;
};

// A small, plain draft of one method and direction.
Draft Plain(const Method& method, Direction direction);

// A call without data but for the integers that a plan reads.
struct DraftCall {
  Call call;
  std::map<std::string, std::vector<int32_t>> integers;
};
std::unique_ptr<DraftCall> CallOf(const Draft& draft);

// One change of a draft: a size, an option or a tensor.
struct Change {
  std::string text;
  std::function<void(Draft*)> apply;
};
std::vector<Change> ChangesOf(const Method& method);

// Changes the draft as the reasons of a refusal require: "must be in 1..4", "must be sent
// together", "with V = 32". False: they name no remedy, or the draft already complies.
bool Follow(const std::string& refusal, Draft* draft);

}  // namespace attnd::testing
