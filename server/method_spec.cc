#include "server/method_spec.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"
#include "google/protobuf/unknown_field_set.h"
#include "server/reasons.h"

namespace attnd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

std::string EnumName(const FieldDescriptor& field, int number) {
  const EnumValueDescriptor* value = field.enum_type()->FindValueByNumber(number);
  return value == nullptr ? std::to_string(number) : value->name();
}

// Names are distinct, so the first one too many is refused: those after it are left out, since a
// byte on the wire must not cost a string of memory.
std::vector<std::string> EnumNames(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  const int most = field.enum_type()->value_count() + 1;
  std::vector<std::string> names;
  for (int i = 0; i < std::min(reflection.FieldSize(message, &field), most); ++i) {
    names.push_back(EnumName(field, reflection.GetRepeatedEnumValue(message, &field, i)));
  }
  return names;
}

OptionValue FromUnsigned(uint64_t value) {
  if (value > INT64_MAX) return value;
  return static_cast<int64_t>(value);
}

// Reached by no method of the registry, which a test checks.
std::nullopt_t OtherType(const FieldDescriptor& field, Reasons* reasons) {
  reasons->Unserved(field.name(), " has a type that is not served, got ", field.type_name());
  return std::nullopt;
}

// Empty: the field is absent or refused.
std::optional<OptionValue> ReadOption(const Message& message, const FieldDescriptor& field,
                                      Reasons* reasons) {
  const Reflection& reflection = *message.GetReflection();
  const bool is_list = field.is_repeated();
  if (is_list ? reflection.FieldSize(message, &field) == 0
              : !reflection.HasField(message, &field)) {
    return std::nullopt;
  }
  if (is_list && field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    const auto list = reflection.GetRepeatedFieldRef<int64_t>(message, &field);
    return std::vector<int64_t>(list.begin(), list.end());
  }
  if (is_list && field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    return EnumNames(message, field);
  }
  if (is_list) return OtherType(field, reasons);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return FromUnsigned(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(field, reflection.GetEnumValue(message, &field));
    default:
      return OtherType(field, reasons);
  }
}

std::string MethodNames(const OneofDescriptor& oneof) {
  std::vector<std::string> names;
  for (int i = 0; i < oneof.field_count(); ++i) names.push_back(oneof.field(i)->name());
  return absl::StrJoin(names, ", ");
}

absl::Status MissingMethod(const attn::v1::MethodSpec& spec, const OneofDescriptor& oneof) {
  Reasons reasons("request");
  const auto& unknown = spec.GetReflection()->GetUnknownFields(spec);
  if (unknown.empty()) {
    reasons.Invalid("method must be one of ", MethodNames(oneof), ", got none");
  } else {
    // A method of a newer version of the protocol.
    reasons.Unserved("method must be one of ", MethodNames(oneof), ", got number ",
                     unknown.field(0).number());
  }
  return reasons.status();
}

}  // namespace

DecodedSpec DecodeSpec(const attn::v1::MethodSpec& spec) {
  const Reflection& reflection = *spec.GetReflection();
  const OneofDescriptor& oneof = *spec.GetDescriptor()->FindOneofByName("method");
  const FieldDescriptor* chosen = reflection.GetOneofFieldDescriptor(spec, &oneof);
  if (chosen == nullptr) return {.status = MissingMethod(spec, oneof)};

  DecodedSpec decoded{.method = chosen->name()};
  Reasons envelope("request"), own(decoded.method);
  RefuseUnknownFields(spec, "method fields", &envelope);
  decoded.options = DecodeOptions(reflection.GetMessage(spec, chosen), &own);
  decoded.status = MergeReasons(envelope.status(), own.status());
  return decoded;
}

OptionMap DecodeOptions(const Message& message, Reasons* reasons) {
  OptionMap options;
  RefuseUnknownFields(message, "options", reasons);
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (auto value = ReadOption(message, field, reasons)) options[field.name()] = *value;
  }
  return options;
}

}  // namespace attnd
