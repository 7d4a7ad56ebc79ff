#include "tests/plan/draft.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/method/method.h"

namespace attnd::testing {
namespace {

constexpr int64_t kSizes[] = {0, 1, 2, 1024, 8192, 1 << 14, 1 << 16, 1 << 20, 1 << 30};
constexpr size_t kMostDimensions = 1 << 16;  // of a list of integers that holds values

// The letters of the first list of "[B,Nk] or [Nk]".
std::vector<std::string> LettersOf(absl::string_view declared) {
  absl::ConsumePrefix(&declared, "broadcastable to ");
  absl::string_view list = declared.substr(0, declared.find(" or "));
  absl::ConsumePrefix(&list, "[");
  absl::ConsumeSuffix(&list, "]");
  return absl::StrSplit(list, ',', absl::SkipEmpty());
}

int64_t SizeOf(const Draft& draft, const std::string& letter) {
  int64_t number = 0;
  if (absl::SimpleAtoi(letter, &number)) return number;
  const auto found = draft.sizes.find(letter);
  return found == draft.sizes.end() ? 3 : found->second;
}

Shape ShapeOf(const Draft& draft, absl::string_view declared) {
  Shape shape;
  for (const std::string& letter : LettersOf(declared)) {
    shape.dims[shape.rank++] = SizeOf(draft, letter);
  }
  return shape;
}

// Ascending from 0 to `last` where they are ends, else within 0..last.
std::vector<int32_t> Integers(size_t count, int64_t last, Fill fill, bool are_ends) {
  std::vector<int32_t> values(count, fill == Fill::kLeast ? 0 : static_cast<int32_t>(last));
  if (are_ends) std::fill(values.begin(), values.end(), 0);
  if (fill == Fill::kEach) {
    // Differences of 0, 1, 2, ... as far as they go.
    int64_t value = 0, step = 0;
    for (int32_t& v : values) {
      v = static_cast<int32_t>(are_ends ? value : (step * 7) % (last + 1));
      value = std::min(value + step, last);
      ++step;
    }
  }
  if (are_ends && count > 0) values.back() = static_cast<int32_t>(last);
  return values;
}

const TensorInfo* InputOf(const Method& method, absl::string_view name) {
  for (const TensorInfo& input : method.info().inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}
const OptionInfo* OptionOf(const Method& method, absl::string_view name) {
  for (const OptionInfo& option : method.info().options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

void AddTensor(DraftCall* made, const Draft& draft, const TensorInfo& info, const std::string& name,
               Fill fill) {
  const Shape shape = ShapeOf(draft, info.shape);
  const bool is_read = PlanReads(name) && shape.rank == 1;
  const DType dtype = info.dtype == "int32"   ? DType::kI32
                      : info.dtype == "uint8" ? DType::kU8
                                              : DType::kF32;
  const auto count = static_cast<size_t>(std::clamp<int64_t>(shape.size(), 0, kMostDimensions + 1));
  if (!is_read || count != static_cast<size_t>(shape.size())) {
    made->call.tensors[name] = DenseView(nullptr, dtype, shape);
    return;
  }
  const bool of_keys = name.find('k') != std::string::npos;
  const int64_t N = SizeOf(draft, of_keys ? "Nk" : "Nq");
  std::vector<int32_t>& values = made->integers[name];
  values = Integers(count, N, fill, absl::StartsWith(name, "cu_"));
  made->call.tensors[name] = DenseView(values.data(), dtype, shape);
}

Change SizeChange(const std::string& letter, int64_t size) {
  return {absl::StrCat(letter, "=", size), [=](Draft* d) { d->sizes[letter] = size; }};
}
Change OptionChange(const std::string& name, const OptionValue& value) {
  std::string text = ToString(value);
  if (text.size() > 40) text = absl::StrCat(text.substr(0, 40), "...");
  return {absl::StrCat(name, "=", text), [=](Draft* d) { d->options[name] = value; }};
}

// Numbers in a text: "in 1..512".
std::vector<int64_t> NumbersOf(absl::string_view text) {
  std::vector<int64_t> numbers;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + (text[at] == '-' ? 1 : 0);
    while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
    int64_t number = 0;
    if (absl::SimpleAtoi(text.substr(at, end - at), &number)) numbers.push_back(number);
    at = std::max(end, at + 1);
  }
  return numbers;
}

void AddOptionChanges(const OptionInfo& option, std::vector<Change>* changes) {
  std::set<int64_t> ends = {
      0, 1, 2, 64, 1 << 14, 1 << 16, 1 << 20, 1 << 30, INT64_C(1) << 33, INT64_MAX};
  for (const int64_t number : NumbersOf(option.range)) ends.insert(number);
  switch (option.type) {
    case OptionType::kBool:
      for (const bool value : {false, true}) changes->push_back(OptionChange(option.name, value));
      break;
    case OptionType::kEnum:
      for (const std::string& value : option.enum_values) {
        changes->push_back(OptionChange(option.name, value));
      }
      break;
    case OptionType::kFloat:
      for (const double value : {0.0, 1.0, 1e30}) {
        changes->push_back(OptionChange(option.name, value));
      }
      break;
    case OptionType::kInt:
      for (const int64_t value : ends) changes->push_back(OptionChange(option.name, value));
      break;
    case OptionType::kInts: {
      std::vector<int64_t> all(kMostDimensions);
      std::iota(all.begin(), all.end(), 1);
      changes->push_back(OptionChange(option.name, all));
      changes->push_back(
          OptionChange(option.name, std::vector<int64_t>(kMostDimensions, INT64_MAX)));
      for (const int64_t value : ends) {
        changes->push_back(OptionChange(option.name, std::vector<int64_t>{value}));
        changes->push_back(OptionChange(option.name, std::vector<int64_t>{value, 1}));
        changes->push_back(OptionChange(option.name, std::vector<int64_t>{1, value}));
      }
      break;
    }
    case OptionType::kEnums:
      for (const std::string& value : option.enum_values) {
        changes->push_back(OptionChange(option.name, std::vector<std::string>{value}));
      }
      changes->push_back(OptionChange(option.name, option.enum_values));
      break;
  }
}

// "3" of "must be [V,H,D] with V = relative_vocab_size = 3": what the text after `name` comes to.
bool ValueAfter(absl::string_view text, const std::string& name, int64_t* value) {
  const size_t at = text.find(absl::StrCat(name, " = "));
  if (at == absl::string_view::npos || (at > 0 && absl::ascii_isalnum(text[at - 1]))) return false;
  absl::string_view rest = text.substr(at + name.size() + 3);
  rest = rest.substr(0, std::min(rest.find(" and "), rest.find(", got")));
  const std::vector<int64_t> numbers = NumbersOf(rest);
  if (numbers.empty()) return false;
  *value = numbers.back();
  return true;
}

bool FollowTensors(const std::string& reason, const std::vector<std::string>& names, Draft* draft) {
  bool changed = false;
  const bool together = absl::StrContains(reason, "together");
  const bool apart =
      absl::StrContains(reason, "must not be sent") || absl::StrContains(reason, "must be absent");
  const bool required = absl::StrContains(reason, "required");
  for (const std::string& name : names) {
    if (together || required) changed |= draft->tensors.emplace(name, Fill::kMost).second;
    if (apart) return draft->tensors.erase(name) > 0;
  }
  return changed;
}

bool FollowSizes(const std::string& reason, Draft* draft) {
  bool changed = false;
  std::set<std::string> letters;
  for (const TensorInfo& input : draft->method->info().inputs) {
    for (const std::string& letter : LettersOf(input.shape)) letters.insert(letter);
  }
  for (const std::string& letter : letters) {
    int64_t size = 0;
    const bool is_with = absl::StrContains(reason, " with ") && ValueAfter(reason, letter, &size);
    const bool is_stated = absl::StartsWith(reason, absl::StrCat(letter, " must be "));
    if (is_stated) {
      const std::vector<int64_t> numbers =
          NumbersOf(absl::string_view(reason).substr(0, reason.find(", got")));
      if (numbers.empty()) continue;
      // "Nk must be Nq = 60 unless window = -1": a size is not negative.
      size = numbers.back() < 0 ? numbers.front() : numbers.back();
    }
    if (!is_with && !is_stated) continue;
    changed |= !draft->sizes.contains(letter) || draft->sizes[letter] != size;
    draft->sizes[letter] = size;
  }
  return changed;
}

bool FollowOption(const std::string& reason, const OptionInfo& option, Draft* draft) {
  const absl::string_view asked = absl::string_view(reason).substr(0, reason.find(", got"));
  std::vector<int64_t> numbers =
      NumbersOf(asked.substr(std::min(option.name.size(), asked.size())));
  OptionValue value;
  switch (option.type) {
    case OptionType::kBool:
      value = absl::StrContains(asked, "must be true");
      break;
    case OptionType::kInt:
      value = numbers.empty() ? int64_t{1} : numbers.back();
      break;
    case OptionType::kInts: {
      const int64_t last = numbers.empty() ? draft->sizes["Nq"] : numbers.back();
      if (absl::StrContains(asked, " values")) {
        const int64_t count = std::clamp<int64_t>(last, 1, kMostDimensions);
        std::vector<int64_t> list(static_cast<size_t>(count), 1);
        std::iota(list.begin(), list.end(), 1);
        value = list;
        break;
      }
      const auto sent = draft->options.find(option.name);
      const auto* list =
          sent == draft->options.end() ? nullptr : std::get_if<std::vector<int64_t>>(&sent->second);
      const bool is_pair =
          absl::StrContains(option.range, "2 values") || list == nullptr || list->size() != 1;
      value = is_pair ? std::vector<int64_t>{1, last} : std::vector<int64_t>{last};
      break;
    }
    default:
      draft->options.erase(option.name);
      return true;
  }
  const auto sent = draft->options.find(option.name);
  if (sent != draft->options.end() && sent->second == value) return false;
  draft->options[option.name] = value;
  return true;
}

}  // namespace

std::string Draft::Text() const {
  std::vector<std::string> parts = {method->info().id, std::string(Name(direction))};
  for (const auto& [letter, size] : sizes) parts.push_back(absl::StrCat(letter, "=", size));
  for (const auto& [name, value] : options) {
    parts.push_back(absl::StrCat(name, "=", ToString(value).substr(0, 60)));
  }
  for (const auto& [name, fill] : tensors) {
    parts.push_back(absl::StrCat(name, ":", static_cast<int>(fill)));
  }
  return absl::StrJoin(parts, " ");
}

Draft Plain(const Method& method, Direction direction) {
  return {.method = &method,
          .direction = direction,
          .sizes = {{"B", 2}, {"H", 2}, {"Hkv", 2}, {"Nq", 60}, {"Nk", 60}, {"D", 8}, {"Dv", 8}}};
}

std::unique_ptr<DraftCall> CallOf(const Draft& draft) {
  auto made = std::make_unique<DraftCall>();
  made->call.method = draft.method->info().id;
  made->call.options = draft.options;
  made->call.direction = draft.direction;
  for (const TensorInfo& input : draft.method->info().inputs) {
    const auto sent = draft.tensors.find(input.name);
    if (!input.required && sent == draft.tensors.end()) continue;
    AddTensor(made.get(), draft, input, input.name,
              sent == draft.tensors.end() ? Fill::kMost : sent->second);
  }
  for (const TensorInfo& output : draft.method->info().outputs) {
    const std::string name = "grad_" + output.name;
    const bool is_sent = draft.direction == Direction::kBackward &&
                         (output.name == "out" || draft.tensors.contains(name));
    if (is_sent) AddTensor(made.get(), draft, output, name, Fill::kMost);
  }
  return made;
}

std::vector<Change> ChangesOf(const Method& method) {
  std::vector<Change> changes;
  std::set<std::string> letters = {"Hkv", "Nk", "Dv"};
  const auto add_letters = [&](const TensorInfo& tensor) {
    for (const std::string& letter : LettersOf(tensor.shape)) letters.insert(letter);
  };
  for (const TensorInfo& input : method.info().inputs) add_letters(input);
  int64_t number = 0;
  for (const std::string& letter : letters) {
    for (const int64_t size : kSizes) {
      if (!absl::SimpleAtoi(letter, &number)) changes.push_back(SizeChange(letter, size));
    }
  }
  // Sizes that change together.
  for (const int64_t size : kSizes) {
    changes.push_back(
        {absl::StrCat("N=", size), [=](Draft* d) { d->sizes["Nq"] = d->sizes["Nk"] = size; }});
    changes.push_back(
        {absl::StrCat("heads=", size), [=](Draft* d) { d->sizes["H"] = d->sizes["Hkv"] = size; }});
  }
  for (const OptionInfo& option : method.info().options) AddOptionChanges(option, &changes);
  const auto add_tensor = [&](const std::string& name) {
    for (const Fill fill : {Fill::kMost, Fill::kLeast, Fill::kEach}) {
      changes.push_back({absl::StrCat(name, ":", static_cast<int>(fill)),
                         [=](Draft* d) { d->tensors[name] = fill; }});
      if (!PlanReads(name)) break;
    }
  };
  for (const TensorInfo& input : method.info().inputs) {
    if (!input.required) add_tensor(input.name);
  }
  for (const TensorInfo& output : method.info().outputs) {
    if (output.name != "out") add_tensor("grad_" + output.name);
  }
  return changes;
}

bool Follow(const std::string& refusal, Draft* draft) {
  bool changed = false;
  const Method& method = *draft->method;
  const std::string prefix = method.info().id + ": ";
  for (absl::string_view line : absl::StrSplit(refusal, '\n')) {
    absl::ConsumePrefix(&line, prefix);
    const std::string reason(line);
    std::vector<std::string> tensors;
    bool of_option = false;
    for (const absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" ,"))) {
      const bool is_tensor =
          InputOf(method, word) != nullptr || draft->tensors.contains(std::string(word));
      if (is_tensor) tensors.emplace_back(word);
    }
    const std::string subject(line.substr(0, line.find_first_of(" [")));
    if (const OptionInfo* option = OptionOf(method, subject)) {
      of_option = true;
      changed |= FollowOption(reason, *option, draft);
    }
    changed |= FollowSizes(reason, draft);
    if (!of_option) changed |= FollowTensors(reason, tensors, draft);
  }
  return changed;
}

}  // namespace attnd::testing
