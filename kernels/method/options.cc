#include "kernels/method/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/pattern/base/key.h"

namespace attnd {
namespace {

// The shortest text that reads back as the same number: unequal values have unequal buckets.
std::string NumberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

}  // namespace

absl::string_view Name(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "bool";
    case OptionType::kInt:
      return "int";
    case OptionType::kFloat:
      return "float";
    case OptionType::kEnum:
      return "enum";
    case OptionType::kInts:
      return "ints";
    case OptionType::kEnums:
      return "enums";
  }
  return "?";
}

std::string ToString(const OptionValue& value) {
  struct Writer {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(uint64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const { return NumberText(v); }
    std::string operator()(const std::string& v) const { return Quoted(v); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return absl::StrCat("[", absl::StrJoin(v, ","), "]");
    }
    std::string operator()(const std::vector<std::string>& v) const {
      const auto quote = [](std::string* to, const std::string& x) { *to += Quoted(x); };
      return absl::StrCat("[", absl::StrJoin(v, ",", quote), "]");
    }
  };
  return std::visit(Writer{}, value);
}

std::string Shown(const OptionValue& value) {
  constexpr size_t kMost = 64;
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (list == nullptr || list->size() <= kMost) return ToString(value);
  const std::string first = absl::StrJoin(list->begin(), list->begin() + kMost, ",");
  return absl::StrCat("[", first, ",.. ", list->size(), " values]");
}

std::string BucketText(const OptionValue& value) {
  constexpr size_t kMost = 64;
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (list == nullptr || list->size() <= kMost) return ToString(value);
  std::vector<int32_t> halves;
  halves.reserve(2 * list->size());
  for (const int64_t x : *list) {
    halves.push_back(static_cast<int32_t>(x & UINT32_MAX));
    halves.push_back(static_cast<int32_t>(x >> 32));
  }
  return absl::StrCat("[", Fingerprint(halves), "]");
}

namespace options_internal {

std::string DefaultText(const OptionValue& value) {
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    return absl::StrJoin(*list, ",");
  }
  if (const auto* names = std::get_if<std::vector<std::string>>(&value)) {
    return absl::StrJoin(*names, ",");
  }
  return absl::StrReplaceAll(ToString(value), {{"e-0", "e-"}});
}

void ReadBool(absl::string_view name, const OptionValue& value, bool* out, Reasons* reasons) {
  if (const bool* v = std::get_if<bool>(&value)) {
    *out = *v;
  } else {
    reasons->Invalid(name, " must be a bool, got ", Shown(value));
  }
}

void ReadInt(absl::string_view name, IntRange range, const OptionValue& value, int64_t* out,
             Reasons* reasons) {
  const int64_t* v = std::get_if<int64_t>(&value);
  if (v == nullptr) {
    reasons->Invalid(name, " must be an integer, got ", Shown(value));
  } else if (*v < range.min || *v > range.max) {
    reasons->Invalid(name, " must be ", RangeText(range), ", got ", *v);
  } else {
    *out = *v;
  }
}

void ReadSeed(absl::string_view name, const OptionValue& value, uint64_t* out, Reasons* reasons) {
  const int64_t* v = std::get_if<int64_t>(&value);
  if (const uint64_t* wide = std::get_if<uint64_t>(&value)) {
    *out = *wide;
  } else if (v == nullptr) {
    reasons->Invalid(name, " must be an integer, got ", Shown(value));
  } else if (*v < 0) {
    reasons->Invalid(name, " must be in 0..2^64-1, got ", *v);
  } else {
    *out = static_cast<uint64_t>(*v);
  }
}

void ReadInts(absl::string_view name, IntsRule rule, const OptionValue& value,
              std::vector<int64_t>* out, Reasons* reasons) {
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (list == nullptr) {
    reasons->Invalid(name, " must be a list of integers, got ", Shown(value));
    return;
  }
  *out = *list;
  if (rule.count != 0 && !list->empty() && list->size() != rule.count) {
    reasons->Invalid(name, " must have ", rule.count, " values, got ", list->size());
    return;
  }
  int reported = 0;
  constexpr int kReported = 4;  // of a list that may be long
  for (size_t i = 0; i < list->size() && reported < kReported; ++i) {
    if ((*list)[i] >= rule.min) continue;
    reasons->Invalid(name, "[", i, "] must be >= ", rule.min, ", got ", (*list)[i]);
    ++reported;
  }
}

void ReadFloat(absl::string_view name, FloatRange range, const OptionValue& value, double* out,
               Reasons* reasons) {
  double v = 0;
  if (const double* real = std::get_if<double>(&value)) {
    v = *real;
  } else if (const int64_t* whole = std::get_if<int64_t>(&value)) {
    v = static_cast<double>(*whole);
  } else {
    reasons->Invalid(name, " must be a number, got ", Shown(value));
    return;
  }
  const bool above = range.min_open ? v > range.min : v >= range.min;
  if (!std::isfinite(v)) {
    reasons->Invalid(name, " must be finite, got ", NumberText(v));
  } else if (!above || v > range.max) {
    reasons->Invalid(name, " must be ", RangeText(range), ", got ", NumberText(v));
  } else {
    *out = v;
  }
}

void ReadEnum(absl::string_view name, const std::vector<std::string>& names,
              const OptionValue& value, int* out, Reasons* reasons) {
  if (const std::string* v = std::get_if<std::string>(&value)) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == *v) {
        *out = static_cast<int>(i);
        return;
      }
    }
  }
  reasons->Invalid(name, " must be one of ", absl::StrJoin(names, ", "), ", got ", Shown(value));
}

bool ReadEnums(absl::string_view name, const std::vector<std::string>& names,
               const OptionValue& value, std::vector<size_t>* out, Reasons* reasons) {
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  if (list == nullptr) {
    reasons->Invalid(name, " must be a list of names, got ", Shown(value));
    return false;
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const auto found = std::find(names.begin(), names.end(), (*list)[i]);
    const size_t index = static_cast<size_t>(found - names.begin());
    if (found == names.end()) {
      reasons->Invalid(name, "[", i, "] must be one of ", absl::StrJoin(names, ", "), ", got ",
                       Quoted((*list)[i]));
    } else if (std::find(out->begin(), out->end(), index) != out->end()) {
      reasons->Invalid(name, "[", i, "] must not repeat a name, got ", Quoted(*found));
    } else {
      out->push_back(index);
      continue;
    }
    out->clear();
    return false;
  }
  return true;
}

void RefuseUnlessDefault(absl::string_view name, const OptionValue& default_value,
                         const OptionValue& value, Reasons* reasons) {
  // 0 and 0.0 are the same default.
  const int64_t* whole = std::get_if<int64_t>(&value);
  const bool is_float = std::holds_alternative<double>(default_value);
  const OptionValue sent =
      whole != nullptr && is_float ? OptionValue(static_cast<double>(*whole)) : value;
  if (sent == default_value) return;
  reasons->Unserved(name, " is not served by this version, got ", Shown(value));
}

std::string RangeText(IntRange range) {
  const bool has_min = range.min != INT64_MIN, has_max = range.max != INT64_MAX;
  if (has_min && has_max) return absl::StrCat("in ", range.min, "..", range.max);
  if (has_min) return absl::StrCat(">= ", range.min);
  if (has_max) return absl::StrCat("<= ", range.max);
  return "";
}

std::string RangeText(IntsRule rule) {
  const std::string each = RangeText(IntRange{.min = rule.min});
  if (rule.count == 0) return each.empty() ? "" : absl::StrCat("each ", each);
  return absl::StrCat(rule.count, " values", each.empty() ? "" : ", each ", each);
}

std::string RangeText(FloatRange range) {
  const FloatRange any;
  const bool has_min = range.min > any.min, has_max = range.max < any.max;
  const std::string min = absl::StrCat(range.min_open ? "> " : ">= ", NumberText(range.min));
  const std::string max = absl::StrCat("<= ", NumberText(range.max));
  if (has_min && has_max) return absl::StrCat(min, " and ", max);
  if (has_min) return min;
  if (has_max) return max;
  return "finite";
}

}  // namespace options_internal
}  // namespace attnd
