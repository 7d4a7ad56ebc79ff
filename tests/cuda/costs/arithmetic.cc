#include "tests/cuda/costs/arithmetic.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/block.h"

extern "C" char __executable_start, etext;

namespace attnd::testing {
namespace {

enum class Kind : uint8_t { kOther, kPlain, kSpecial, kVisit, kBranch, kEnd };

struct Instruction {
  int64_t at;      // from the begin of the program
  int64_t target;  // of a branch; -1: none, or not known
  Kind kind;
};

bool BeginsWithOneOf(std::string_view text, std::initializer_list<std::string_view> starts) {
  return std::any_of(starts.begin(), starts.end(),
                     [&](std::string_view start) { return text.starts_with(start); });
}

// `name` of a function of the mathematics library: fmaf.
Kind KindOfCall(std::string_view name) {
  if (name.starts_with("__sanitizer_cov_trace_pc")) return Kind::kVisit;
  if (name.find("@plt") == name.npos) return Kind::kOther;
  if (BeginsWithOneOf(name, {"fma", "fmin", "rint", "nearbyint", "floor", "ceil", "trunc"})) {
    return Kind::kPlain;
  }
  return BeginsWithOneOf(name, {"exp", "log", "tanh", "erf", "sin", "cos", "tan", "pow", "sqrt"})
             ? Kind::kSpecial
             : Kind::kOther;
}

Kind KindOf(std::string_view name, std::string_view operands) {
  if (name.starts_with('v')) name.remove_prefix(1);
  if (name == "call") {
    const size_t begin = operands.find('<');
    return begin == operands.npos ? Kind::kOther : KindOfCall(operands.substr(begin + 1));
  }
  if (name == "jmp" || name == "ret") return Kind::kEnd;
  if (name.starts_with('j')) return Kind::kBranch;
  if (name.starts_with("cvt")) return Kind::kPlain;
  if (!name.ends_with("ss") && !name.ends_with("sd")) return Kind::kOther;
  if (BeginsWithOneOf(name, {"div", "sqrt"})) return Kind::kSpecial;
  return BeginsWithOneOf(name, {"add", "sub", "mul", "fm", "fnm", "min", "max", "ucomi", "comi",
                                "cmp", "round"})
             ? Kind::kPlain
             : Kind::kOther;
}

// A line of objdump: "   1f3a:\tcall   2b10 <fmaf@plt>". Else its kind is kOther, at 0.
Instruction Parse(std::string_view line) {
  Instruction found = {0, -1, Kind::kOther};
  const size_t colon = line.find(":\t");
  if (colon == line.npos) return found;
  found.at = std::strtoll(line.data(), nullptr, 16);
  const std::string_view text = line.substr(colon + 2);
  const size_t end = std::min(text.find_first_of(" \n"), text.size());
  const std::string_view operands =
      text.substr(std::min(text.find_first_not_of(' ', end), text.size()));
  found.kind = KindOf(text.substr(0, end), operands);
  const bool is_jump = found.kind == Kind::kBranch || found.kind == Kind::kEnd;
  if (is_jump && !operands.empty() && operands[0] != '*') {
    found.target = std::strtoll(operands.data(), nullptr, 16);
  }
  return found;
}

class Program {
 public:
  static Program& Get() {
    static Program program;
    return program;
  }
  void Visit(const void* code) {
    if (emu::self == nullptr || emu::self->block == nullptr) return;
    ++visits_[static_cast<const char*>(code) - &__executable_start];
  }
  Arithmetic Take() {
    Arithmetic sum;
    int64_t visits = 0;
    bool goes_on = false;
    for (const Stretch& stretch : stretches_) {
      // What has no call of its own was split from a block by the compiler.
      visits = stretch.visit >= 0 ? visits_[stretch.visit] : goes_on ? visits : 0;
      goes_on = stretch.goes_on;
      sum.plain += visits * stretch.holds.plain;
      sum.special += visits * stretch.holds.special;
    }
    for (const Stretch& stretch : stretches_) {
      if (stretch.visit >= 0) visits_[stretch.visit] = 0;
    }
    return sum;
  }

 private:
  // Instructions that run one after the other or not at all.
  struct Stretch {
    Arithmetic holds;
    int64_t visit = -1;  // where its call returns to; -1: it has none
    bool goes_on = true;
  };

  Program() {
    // Zeros that take memory where they are written only.
    visits_ = static_cast<int64_t*>(
        std::calloc(static_cast<size_t>(&etext - &__executable_start), sizeof(int64_t)));
    const std::vector<Instruction> all = Read();
    std::vector<int64_t> targets;
    for (const Instruction& i : all) targets.push_back(i.target);
    std::sort(targets.begin(), targets.end());
    Stretch now;
    const auto cut = [&] { stretches_.push_back(std::exchange(now, {})); };
    for (size_t n = 0; n < all.size(); ++n) {
      const Instruction& i = all[n];
      const bool is_second = i.kind == Kind::kVisit && now.visit >= 0;
      if (is_second || std::binary_search(targets.begin(), targets.end(), i.at)) cut();
      now.holds.plain += i.kind == Kind::kPlain ? 1 : 0;
      now.holds.special += i.kind == Kind::kSpecial ? 1 : 0;
      if (i.kind == Kind::kVisit && n + 1 < all.size()) now.visit = all[n + 1].at;
      now.goes_on = i.kind != Kind::kEnd;
      if (i.kind == Kind::kEnd || i.kind == Kind::kBranch) cut();
    }
    cut();
  }

  static std::vector<Instruction> Read() {
    char command[96], line[1024];
    std::snprintf(command, sizeof(command), "objdump -d --no-show-raw-insn /proc/%d/exe", getpid());
    std::vector<Instruction> all;
    FILE* pipe = popen(command, "r");
    while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) {
      const Instruction found = Parse(line);
      if (found.at != 0) all.push_back(found);
    }
    if (pipe != nullptr) pclose(pipe);
    return all;
  }

  int64_t* visits_;  // by where the call of a block returns to
  std::vector<Stretch> stretches_;
};

}  // namespace

Arithmetic TakeArithmetic() { return Program::Get().Take(); }

}  // namespace attnd::testing

// What g++ calls with -fsanitize-coverage=trace-pc.
extern "C" void __sanitizer_cov_trace_pc() {
  attnd::testing::Program::Get().Visit(__builtin_return_address(0));
}
