// A method's options as a table: one line an option gives parsing, ranges, defaults and help.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/status.h"
#include "kernels/method/problem.h"

namespace attnd {

// A value as sent. Enums travel as their lower-case name; uint64_t is what int64_t cannot hold.
using OptionValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<int64_t>,
                                 std::vector<std::string>>;
// Only what the caller set, by name. An option that is absent has its default.
using OptionMap = std::map<std::string, OptionValue>;

// The parsed options of one request: the option struct of the method that parsed them.
using OptionsHandle = std::shared_ptr<const void>;

enum class OptionType : uint8_t { kBool, kInt, kFloat, kEnum, kInts, kEnums };

// "bool", "int", "float", "enum", "ints", "enums".
absl::string_view Name(OptionType type);

// "true", "-3", "0.125" (every digit that matters), "\"block\"", "[1,2]", "[\"a\",\"b\"]".
std::string ToString(const OptionValue& value);

// The same for a message: of a long list its beginning, "[1,2,.. 65536 values]".
std::string Shown(const OptionValue& value);

// The same for the name of a bucket: of a long list its fingerprint. Equal only of equal values.
std::string BucketText(const OptionValue& value);

// For people and for ListMethods.
struct OptionInfo {
  std::string name;
  OptionType type = OptionType::kBool;
  std::string default_text;              // "false", "1/sqrt(D)", "required"
  std::string range;                     // ">= -1", "finite"; empty: any
  std::vector<std::string> enum_values;  // kEnum and kEnums, in the proto's order
  std::string help;
  bool served = true;  // false: specified, refused by name in this version
};

// What an option that is unset stands for where the method decides: by its other options, and by D,
// which all requests of a batch share. No other size may enter: options are those of a whole batch.
// The options it gets leave this one unset.
template <class Options>
using Derived = std::function<OptionValue(const Options&, int64_t D)>;

// What a note says of an option that differs from its default, after its name: "has no effect
// unless granularity is token". Empty: nothing is to be said.
template <class Options>
using OptionNote = std::function<std::string(const Options&, const ProblemShape&)>;

// One line of a method's option table: its description, and how a value enters the option struct.
template <class Options>
struct OptionSpec {
  OptionInfo info;
  // Writes the value, or adds a reason if type or range do not fit.
  std::function<void(const OptionValue&, Options*, Reasons*)> set;
  // The value that `set` left; none: unset, the method decides.
  std::function<std::optional<OptionValue>(const Options&)> get;
  Derived<Options> derived = {};  // empty: an unset option stands for no value
  OptionNote<Options> note = {};  // empty: every value has an effect
};

// The line of an option that the method reads only where `is_read`, a predicate of the options or
// of options and problem. Help and note say so: "no effect unless granularity is token".
template <class Options, class Predicate>
OptionSpec<Options> ReadIf(const std::string& condition, Predicate is_read,
                           OptionSpec<Options> line) {
  const std::string rule = "no effect unless " + condition;
  line.info.help += "; " + rule;
  line.note = [=](const Options& o, const ProblemShape& problem) {
    bool reads = false;
    if constexpr (std::is_invocable_v<Predicate, const Options&>) {
      reads = is_read(o);
    } else {
      reads = is_read(o, problem);
    }
    return reads ? std::string() : "has " + rule;
  };
  return line;
}

// Builders of lines. A default is that of the member, and the help shows it; `default_text` is only
// for what is unset by default: members of type std::optional and empty lists, "1/sqrt(D)". Where
// that text names a value, `derived` computes it, so that requests that spell it out share a batch
// with those that do not.
// Messages: "window_left must be >= -1, got -3"; a wrong type: "causal must be a bool, got 3".
struct IntRange {
  int64_t min = INT64_MIN, max = INT64_MAX;
};
struct IntsRule {
  int64_t min = INT64_MIN;  // of each value
  size_t count = 0;         // 0: any
};
struct FloatRange {  // a float must always be finite
  double min = std::numeric_limits<double>::lowest(), max = std::numeric_limits<double>::max();
  bool min_open = false;  // > min instead of >= min
};

namespace options_internal {
void ReadBool(absl::string_view name, const OptionValue& value, bool* out, Reasons* reasons);
void ReadInt(absl::string_view name, IntRange range, const OptionValue& value, int64_t* out,
             Reasons* reasons);
void ReadFloat(absl::string_view name, FloatRange range, const OptionValue& value, double* out,
               Reasons* reasons);
void ReadSeed(absl::string_view name, const OptionValue& value, uint64_t* out, Reasons* reasons);
void ReadInts(absl::string_view name, IntsRule rule, const OptionValue& value,
              std::vector<int64_t>* out, Reasons* reasons);
void ReadEnum(absl::string_view name, const std::vector<std::string>& names,
              const OptionValue& value, int* out, Reasons* reasons);
// Indices of names, each at most once.
// False: refused, `out` is empty.
bool ReadEnums(absl::string_view name, const std::vector<std::string>& names,
               const OptionValue& value, std::vector<size_t>* out, Reasons* reasons);
void RefuseUnlessDefault(absl::string_view name, const OptionValue& default_value,
                         const OptionValue& value, Reasons* reasons);
std::string RangeText(IntRange range);
std::string RangeText(IntsRule rule);
std::string RangeText(FloatRange range);
// "false", "64", "1e-6", "token", "8,16".
std::string DefaultText(const OptionValue& value);

// The value of a member, or what it holds.
template <class T>
std::optional<OptionValue> ValueOf(const T& value) {
  return value;
}
template <class T>
std::optional<OptionValue> ValueOf(const std::optional<T>& value) {
  return value.has_value() ? std::optional<OptionValue>(*value) : std::nullopt;
}

template <class O, class T>
OptionSpec<O> IntLine(std::string name, T O::*member, IntRange range, std::string default_text,
                      std::string help, std::type_identity_t<Derived<O>> derived = {}) {
  return {{.name = name,
           .type = OptionType::kInt,
           .default_text = default_text,
           .range = RangeText(range),
           .help = help},
          [=](const OptionValue& v, O* o, Reasons* r) {
            int64_t value = 0;
            ReadInt(name, range, v, &value, r);
            o->*member = value;
          },
          [=](const O& o) { return ValueOf(o.*member); },
          std::move(derived)};
}

template <class O, class T>
OptionSpec<O> FloatLine(std::string name, T O::*member, FloatRange range, std::string default_text,
                        std::string help, std::type_identity_t<Derived<O>> derived = {}) {
  return {{.name = name,
           .type = OptionType::kFloat,
           .default_text = default_text,
           .range = RangeText(range),
           .help = help},
          [=](const OptionValue& v, O* o, Reasons* r) {
            double value = 0;
            ReadFloat(name, range, v, &value, r);
            o->*member = value;
          },
          [=](const O& o) { return ValueOf(o.*member); },
          std::move(derived)};
}

template <class O>
OptionSpec<O> IntsLine(std::string name, std::vector<int64_t> O::*member, IntsRule rule,
                       std::string default_text, std::string help,
                       std::type_identity_t<Derived<O>> derived = {}) {
  return {{.name = name,
           .type = OptionType::kInts,
           .default_text = default_text,
           .range = RangeText(rule),
           .help = help},
          [=](const OptionValue& v, O* o, Reasons* r) {
            std::vector<int64_t> values;
            ReadInts(name, rule, v, &values, r);
            o->*member = values.empty() ? O{}.*member : std::move(values);
          },
          [=](const O& o) { return ValueOf(o.*member); },
          std::move(derived)};
}
}  // namespace options_internal

template <class O>
OptionSpec<O> BoolOption(std::string name, bool O::*member, std::string help) {
  return {{.name = name,
           .type = OptionType::kBool,
           .default_text = options_internal::DefaultText(O{}.*member),
           .help = help},
          [=](const OptionValue& v, O* o, Reasons* r) {
            options_internal::ReadBool(name, v, &(o->*member), r);
          },
          [=](const O& o) { return options_internal::ValueOf(o.*member); }};
}

template <class O>
OptionSpec<O> IntOption(std::string name, int64_t O::*member, IntRange range, std::string help) {
  return options_internal::IntLine(name, member, range, options_internal::DefaultText(O{}.*member),
                                   help);
}

template <class O>
OptionSpec<O> IntOption(std::string name, std::optional<int64_t> O::*member, IntRange range,
                        std::string default_text, std::string help,
                        std::type_identity_t<Derived<O>> derived = {}) {
  return options_internal::IntLine(name, member, range, default_text, help, std::move(derived));
}

// Unset is the same as `usual`, but for the rules that ask whether the option was sent.
template <class O>
OptionSpec<O> IntOption(std::string name, std::optional<int64_t> O::*member, IntRange range,
                        int64_t usual, std::string help) {
  OptionSpec<O> line =
      options_internal::IntLine(name, member, range, options_internal::DefaultText(usual), help);
  line.get = [=](const O& o) { return OptionValue((o.*member).value_or(usual)); };
  return line;
}

// An empty list means the default.
template <class O>
OptionSpec<O> IntsOption(std::string name, std::vector<int64_t> O::*member, IntsRule rule,
                         std::string help) {
  return options_internal::IntsLine(name, member, rule, options_internal::DefaultText(O{}.*member),
                                    help);
}

template <class O>
OptionSpec<O> IntsOption(std::string name, std::vector<int64_t> O::*member, IntsRule rule,
                         std::string default_text, std::string help,
                         std::type_identity_t<Derived<O>> derived = {}) {
  return options_internal::IntsLine(name, member, rule, default_text, help, std::move(derived));
}

// The seed of all drawn tensors.
template <class O>
OptionSpec<O> SeedOption(uint64_t O::*member) {
  return {{.name = "seed",
           .type = OptionType::kInt,
           .default_text = options_internal::DefaultText(O{}.*member),
           .range = "in 0..2^64-1",
           .help = "of what is drawn; no effect where it is sent"},
          [=](const OptionValue& v, O* o, Reasons* r) {
            options_internal::ReadSeed("seed", v, &(o->*member), r);
          },
          [=](const O& o) { return options_internal::ValueOf(o.*member); }};
}

template <class O>
OptionSpec<O> FloatOption(std::string name, double O::*member, FloatRange range, std::string help) {
  return options_internal::FloatLine(name, member, range,
                                     options_internal::DefaultText(O{}.*member), help);
}

template <class O>
OptionSpec<O> FloatOption(std::string name, std::optional<double> O::*member, FloatRange range,
                          std::string default_text, std::string help,
                          std::type_identity_t<Derived<O>> derived = {}) {
  return options_internal::FloatLine(name, member, range, default_text, help, std::move(derived));
}

// The causal rule of methods that take no causal_offset.
constexpr char kCausalHelp[] =
    "query i sees keys j <= i + Nk - Nq, also where kv_lengths end before Nk";

template <class O>
OptionSpec<O> CausalOption(bool O::*member) {
  return BoolOption("causal", member, kCausalHelp);
}

// A positive scale whose default is 1/sqrt(D).
template <class O>
OptionSpec<O> ScaleOption(std::optional<double> O::*member, std::string help) {
  return FloatOption("scale", member, {.min = 0, .max = 1e30, .min_open = true}, "1/sqrt(D)", help,
                     [](const O&, int64_t D) { return 1 / std::sqrt(static_cast<double>(D)); });
}

template <class O, class E>  // E: an enum class whose values are 0, 1, ... in the order of names
OptionSpec<O> EnumOption(std::string name, E O::*member, std::vector<std::string> names,
                         std::string help) {
  return {
      {.name = name,
       .type = OptionType::kEnum,
       .default_text = names.at(static_cast<size_t>(O{}.*member)),
       .enum_values = names,
       .help = help},
      [=](const OptionValue& v, O* o, Reasons* r) {
        // A refused value becomes out of range, so later rules skip it.
        int value = static_cast<int>(names.size());
        options_internal::ReadEnum(name, names, v, &value, r);
        o->*member = static_cast<E>(value);
      },
      [=](const O& o) { return options_internal::ValueOf(names[static_cast<size_t>(o.*member)]); }};
}

// A list of distinct names, E as in EnumOption. An empty list means the default.
template <class O, class E>
OptionSpec<O> EnumsOption(std::string name, std::vector<E> O::*member,
                          std::vector<std::string> names, std::string help) {
  const auto sent = [=](const O& o) {
    std::vector<std::string> listed;
    for (const E value : o.*member) listed.push_back(names[static_cast<size_t>(value)]);
    return listed;
  };
  return {{.name = name,
           .type = OptionType::kEnums,
           .default_text = options_internal::DefaultText(sent(O{})),
           .range = "distinct",
           .enum_values = names,
           .help = help},
          [=](const OptionValue& v, O* o, Reasons* r) {
            std::vector<size_t> values;
            const bool is_read = options_internal::ReadEnums(name, names, v, &values, r);
            if (is_read && values.empty()) return;
            (o->*member).clear();  // a refused list is empty, so that later rules skip it
            for (const size_t value : values) (o->*member).push_back(static_cast<E>(value));
          },
          [=](const O& o) { return options_internal::ValueOf(sent(o)); }};
}

// A line of the specification that this version refuses by name unless it is set to its default:
// "local: logit_softcap is not served by this version, got 30". `names` for kEnum only.
template <class O>
OptionSpec<O> UnservedOption(std::string name, OptionType type, OptionValue default_value,
                             std::string help, std::vector<std::string> names = {}) {
  return {{.name = name,
           .type = type,
           .default_text = ToString(default_value),
           .enum_values = names,
           .help = help,
           .served = false},
          [=](const OptionValue& v, O*, Reasons* r) {
            options_internal::RefuseUnlessDefault(name, default_value, v, r);
          },
          [](const O&) { return std::optional<OptionValue>(); }};
}

}  // namespace attnd
