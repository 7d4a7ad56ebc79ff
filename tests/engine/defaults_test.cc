// Options that are spelled out at the default that the help shows, of every method.
#include <gtest/gtest.h>

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
      return OptionValue(text == "true");
    case OptionType::kInt:
      if (absl::SimpleAtoi(text, &whole)) return OptionValue(whole);
      return std::nullopt;
    case OptionType::kFloat:
      if (absl::SimpleAtod(text, &real)) return OptionValue(real);
      return std::nullopt;
    case OptionType::kEnum:
      return OptionValue(text);
    case OptionType::kInts: {
      std::vector<int64_t> values;
      for (const absl::string_view value : absl::StrSplit(text, ',')) {
        if (!absl::SimpleAtoi(value, &whole)) return std::nullopt;
        values.push_back(whole);
      }
      return OptionValue(values);
    }
  }
  return std::nullopt;
}

std::string Described(const Method& method, const OptionMap& sent) {
  Reasons reasons(method.info().id);
  const OptionsHandle options = method.Parse(sent, &reasons);
  EXPECT_TRUE(reasons.empty()) << reasons.status();
  return reasons.empty() ? method.Describe(options.get()) : "refused";
}

// A request that spelled out a default was not batched with one that left it out.
TEST(Defaults, SpelledOutAreThoseLeftOut) {
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
  // Texts that no value has, among them two that every table has.
  EXPECT_TRUE(undecided.contains("1/sqrt(D)"));
  EXPECT_TRUE(undecided.contains("required"));
}

}  // namespace
}  // namespace attnd
