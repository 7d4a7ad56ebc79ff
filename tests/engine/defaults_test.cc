// For every method: an option sent with the default that the help shows equals one left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/method/registry.h"

namespace attnd {
namespace {

// The value that a default's text shows; none where the method decides: "1/sqrt(D)".
std::optional<OptionValue> Shown(const OptionInfo& info) {
  int64_t whole = 0;
  double real = 0;
  const std::string& text = info.default_text;
  switch (info.type) {
    case OptionType::kBool:
      if (text == "true" || text == "false") return OptionValue(text == "true");
      return std::nullopt;
    case OptionType::kInt:
      if (absl::SimpleAtoi(text, &whole)) return OptionValue(whole);
      return std::nullopt;
    case OptionType::kFloat:
      if (absl::SimpleAtod(text, &real)) return OptionValue(real);
      return std::nullopt;
    case OptionType::kEnum:
      if (std::count(info.enum_values.begin(), info.enum_values.end(), text) == 0) {
        return std::nullopt;
      }
      return OptionValue(text);
    case OptionType::kInts: {
      std::vector<int64_t> values;
      for (const absl::string_view value : absl::StrSplit(text, ',')) {
        if (!absl::SimpleAtoi(value, &whole)) return std::nullopt;
        values.push_back(whole);
      }
      return OptionValue(values);
    }
    case OptionType::kEnums:
      return OptionValue(std::vector<std::string>(absl::StrSplit(text, ',')));
  }
  return std::nullopt;
}

constexpr int64_t kD = 16;

std::string Described(const Method& method, const OptionMap& sent) {
  Reasons reasons(method.info().id);
  const OptionsHandle options = method.Parse(sent, &reasons);
  EXPECT_TRUE(reasons.empty()) << reasons.status();
  return reasons.empty() ? method.Describe(options.get(), kD) : "refused";
}

// Symptom: a request with an option at its default was not batched with one that left it out.
TEST(Defaults, SentDefaultsEqualAbsentOptions) {
  std::set<std::string> undecided;
  for (const auto& method : AllMethods()) {
    EXPECT_EQ(Described(*method, {}), "") << method->info().id;
    for (const OptionInfo& info : method->info().options) {
      const std::optional<OptionValue> value = Shown(info);
      if (value.has_value()) {
        EXPECT_EQ(Described(*method, {{info.name, *value}}), "")
            << method->info().id << " " << info.name;
      } else {
        undecided.insert(info.default_text);
      }
    }
  }
  // Texts that state no value; every table contains at least these two.
  EXPECT_TRUE(undecided.contains("1/sqrt(D)"));
  EXPECT_TRUE(undecided.contains("required"));
}

// The same where the default follows from other options or from D.
TEST(Defaults, SentDerivedDefaultsEqualAbsentOptions) {
  using Ints = std::vector<int64_t>;
  const struct {
    std::string method;
    OptionMap options;
    std::string derived;
    OptionValue value, other;
  } cases[] = {
      {"softmax", {}, "scale", 0.25, 0.26},
      {"linear_attention", {{"normalize", false}}, "scale", 0.25, 0.26},
      {"local", {{"window_left", int64_t{9}}}, "window_right", int64_t{9}, int64_t{8}},
      {"local", {{"block", int64_t{4}}}, "look_forward", int64_t{1}, int64_t{0}},
      {"local", {{"causal", true}}, "look_forward", int64_t{0}, int64_t{1}},
      {"image_local_1d", {{"query_block", int64_t{8}}}, "memory", int64_t{8}, int64_t{9}},
      {"bigbird", {}, "global_left", int64_t{1}, int64_t{0}},
      {"bigbird", {{"variant", std::string("etc")}}, "global_right", int64_t{0}, int64_t{1}},
      {"axial", {{"grid", Ints{2, 3}}}, "axes", Ints{0, 1}, Ints{1, 0}},
      {"sinkhorn", {}, "local", true, false},
      {"sinkhorn", {{"sortcut", int64_t{2}}}, "local", false, true},
      {"sinkhorn", {{"causal", true}}, "n_top", int64_t{2}, int64_t{3}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.method + " " + c.derived);
    const Method& method = *FindMethod(c.method);
    OptionMap spelled_out = c.options, other = c.options;
    spelled_out[c.derived] = c.value;
    other[c.derived] = c.other;
    EXPECT_EQ(Described(method, spelled_out), Described(method, c.options));
    EXPECT_NE(Described(method, other), Described(method, c.options));
  }
}

}  // namespace
}  // namespace attnd
