#include "attnd/request.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::client {
namespace {

class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int column, const std::string& what) override {
    if (text_.empty()) text_ = absl::StrCat(what, " (column ", column + 1, ")");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string MethodIds() {
  const auto* oneof = MethodSpec::descriptor()->FindOneofByName("method");
  std::vector<std::string> ids;
  for (int i = 0; i < oneof->field_count(); ++i) ids.push_back(oneof->field(i)->name());
  return absl::StrJoin(ids, ", ");
}

}  // namespace

absl::StatusOr<MethodSpec> ParseMethod(absl::string_view text) {
  std::string spec(absl::StripAsciiWhitespace(text));
  // A method whose options all have their defaults.
  if (spec.find('{') == std::string::npos && !spec.empty()) spec += "{}";
  MethodSpec method;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(spec, &method)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request: method must look like local{window_left:64}, got ", text, ": ", error.text()));
  }
  if (method.method_case() == MethodSpec::METHOD_NOT_SET) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: method must be one of ", MethodIds(), ", got none"));
  }
  return method;
}

int64_t ElementBytes(DType::Value dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::uint8:
      return 1;
    default:
      return 0;
  }
}

}  // namespace attnd::client
