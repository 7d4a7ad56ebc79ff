// Decoding of options, and that methods.proto and the option tables of the methods agree.
#include "server/method_spec.h"

#include <limits>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "kernels/method/registry.h"

namespace attnd {
namespace {

namespace v1 = attn::v1;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(MethodSpecTest, OptionsKeepTheirTypesAndPresence) {
  v1::MethodSpec spec;
  v1::LinearAttention& options = *spec.mutable_linear_attention();
  options.set_feature_map(v1::LinearAttention::FeatureMap::squared);
  options.set_normalize(false);
  options.set_eps(std::numeric_limits<double>::infinity());
  options.set_chunk_size(-5);
  options.set_seed(uint64_t{1} << 40);
  const DecodedSpec decoded = DecodeSpec(spec);
  EXPECT_TRUE(decoded.status.ok());
  EXPECT_EQ(decoded.method, "linear_attention");
  EXPECT_EQ(decoded.options, (OptionMap{{"feature_map", std::string("squared")},
                                        {"normalize", false},
                                        {"eps", std::numeric_limits<double>::infinity()},
                                        {"chunk_size", int64_t{-5}},
                                        {"seed", int64_t{1} << 40}}));
}

TEST(MethodSpecTest, ReadsUnsignedValuesThatNoSignedOneHolds) {
  v1::MethodSpec spec;
  spec.mutable_linear_attention()->set_seed(UINT64_MAX);
  EXPECT_EQ(DecodeSpec(spec).options, (OptionMap{{"seed", uint64_t{UINT64_MAX}}}));
}

TEST(MethodSpecTest, ListsOfNamesEndAfterTheFirstThatMustRepeat) {
  using Names = std::vector<std::string>;
  v1::MethodSpec spec;
  spec.mutable_synthesizer()->add_components(v1::Synthesizer::Component::dot);
  spec.mutable_synthesizer()->add_components(v1::Synthesizer::Component::random);
  EXPECT_EQ(DecodeSpec(spec).options, (OptionMap{{"components", Names{"dot", "random"}}}));
  for (int i = 0; i < 1000; ++i) {
    spec.mutable_synthesizer()->add_components(v1::Synthesizer::Component::dense);
  }
  const OptionMap many = DecodeSpec(spec).options;
  EXPECT_EQ(std::get<Names>(many.at("components")).size(), 6);
}

TEST(MethodSpecTest, RefusesTypesThatNoOptionHas) {
  // A message of protobuf in place of a method with an option of an unreadable type.
  google::protobuf::UninterpretedOption message;
  message.set_string_value("text");
  message.set_double_value(0.5);
  Reasons reasons("strange");
  EXPECT_THAT(DecodeOptions(message, &reasons),
              ElementsAre(Pair("double_value", OptionValue(0.5))));
  EXPECT_EQ(reasons.status().message(),
            "strange: string_value has a type that is not served, got bytes");
}

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_repeated()) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) return "enums";
    return field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ? "ints" : "repeated other";
  }
  if (!field.has_optional_keyword()) return "no presence";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "bool";
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "int";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "float";
    case FieldDescriptor::CPPTYPE_ENUM:
      return "enum";
    default:
      return field.cpp_type_name();
  }
}

// The names in the order of their numbers, which are 0, 1, ...
std::vector<std::string> ValuesOf(const FieldDescriptor& field) {
  std::vector<std::string> values;
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) return values;
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const auto* value = field.enum_type()->FindValueByNumber(i);
    values.push_back(value == nullptr ? "a number is left out" : value->name());
  }
  return values;
}

// The differences between the message of a method and its option table.
std::vector<std::string> Differences(const Descriptor& message, const MethodInfo& method) {
  std::vector<std::string> found;
  std::map<std::string, const OptionInfo*> options;
  for (const OptionInfo& option : method.options) options[option.name] = &option;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const auto option = options.find(field.name());
    if (option == options.end()) {
      found.push_back(absl::StrCat(field.name(), ": in the proto only"));
      continue;
    }
    const OptionInfo& info = *option->second;
    if (TypeOf(field) != Name(info.type)) {
      found.push_back(absl::StrCat(field.name(), ": ", TypeOf(field), " in the proto, ",
                                   Name(info.type), " in the table"));
    }
    if (ValuesOf(field) != info.enum_values) {
      found.push_back(absl::StrCat(field.name(), ": other enum values"));
    }
    options.erase(option);
  }
  for (const auto& [name, info] : options) found.push_back(name + ": in the table only");
  return found;
}

TEST(SchemaTest, EveryMethodHasItsMessageAndEveryMessageItsMethod) {
  const auto& oneof = *v1::MethodSpec::descriptor()->FindOneofByName("method");
  ASSERT_FALSE(AllMethods().empty());
  for (const auto& method : AllMethods()) {
    const MethodInfo& info = method->info();
    const FieldDescriptor* field = v1::MethodSpec::descriptor()->FindFieldByName(info.id);
    ASSERT_NE(field, nullptr) << info.id;
    EXPECT_EQ(field->containing_oneof(), &oneof) << info.id;
    EXPECT_THAT(Differences(*field->message_type(), info), IsEmpty()) << info.id;
  }
  for (int i = 0; i < oneof.field_count(); ++i) {
    EXPECT_NE(FindMethod(oneof.field(i)->name()), nullptr) << oneof.field(i)->name();
  }
}

TEST(SchemaTest, NoticesEveryKindOfDifference) {
  const Method* local = FindMethod("local");
  ASSERT_NE(local, nullptr);
  MethodInfo info = local->info();
  for (OptionInfo& option : info.options) {
    if (option.name == "block") option.name = "blocks";
    if (option.name == "causal") option.type = OptionType::kInt;
    if (option.name == "granularity") std::swap(option.enum_values[0], option.enum_values[1]);
  }
  EXPECT_THAT(Differences(*v1::Local::descriptor(), info),
              UnorderedElementsAre("block: in the proto only", "blocks: in the table only",
                                   "causal: bool in the proto, int in the table",
                                   "granularity: other enum values"));
}

}  // namespace
}  // namespace attnd
