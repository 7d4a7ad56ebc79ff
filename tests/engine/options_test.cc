#include "kernels/method/options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "kernels/method/method.h"

namespace attnd {
namespace {

enum class Color : uint8_t { kRed, kBlue };

struct Sample {
  bool on = false;
  int64_t count = 3;
  std::optional<int64_t> width;
  std::optional<double> scale;
  double eps = 1e-6;
  Color color = Color::kRed;
  std::vector<int64_t> shape = {8, 16};
  std::optional<int64_t> drawn;  // unset: 5
  std::vector<Color> colors = {Color::kBlue};
};

class SampleMethod : public MethodOf<Sample> {
 public:
  SampleMethod()
      : MethodOf({.id = "sample"},
                 {BoolOption<Sample>("on", &Sample::on, ""),
                  IntOption<Sample>("count", &Sample::count, {.min = 1, .max = 9}, ""),
                  IntOption<Sample>("width", &Sample::width, {.min = -1}, "required", ""),
                  FloatOption<Sample>("scale", &Sample::scale, {}, "1/sqrt(D)", ""),
                  FloatOption<Sample>("eps", &Sample::eps, {.min = 0, .min_open = true}, ""),
                  EnumOption<Sample>("color", &Sample::color, {"red", "blue"}, ""),
                  IntsOption<Sample>("shape", &Sample::shape, {.min = 1, .count = 2}, ""),
                  IntOption<Sample>("drawn", &Sample::drawn, {.min = 0}, 5, ""),
                  EnumsOption<Sample>("colors", &Sample::colors, {"red", "blue"}, ""),
                  UnservedOption<Sample>("cap", OptionType::kFloat, 0.0, ""),
                  UnservedOption<Sample>("norm", OptionType::kEnum, std::string("prefix"), "",
                                         {"prefix", "joint"})}) {}

 protected:
  Outputs Formula(Ops&, const Inputs&, const Sample&) const override { return {}; }
};

// The parsed struct and the reasons.
std::pair<Sample, absl::Status> Parse(const OptionMap& sent) {
  Reasons reasons("sample");
  const OptionsHandle handle = SampleMethod().Parse(sent, &reasons);
  return {*static_cast<const Sample*>(handle.get()), reasons.status()};
}

TEST(Options, AbsentIsDefault) {
  const auto [o, status] = Parse({});
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(o.count, 3);
  EXPECT_FALSE(o.width.has_value());
  EXPECT_FALSE(o.scale.has_value());
}

TEST(Options, ValuesArrive) {
  const auto [o, status] = Parse({{"on", true},
                                  {"count", int64_t{9}},
                                  {"width", int64_t{-1}},
                                  {"scale", -2.5},
                                  {"eps", int64_t{2}},  // whole numbers are numbers
                                  {"color", std::string("blue")}});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(o.on);
  EXPECT_EQ(o.count, 9);
  EXPECT_EQ(o.width, -1);
  EXPECT_EQ(o.scale, -2.5);
  EXPECT_EQ(o.eps, 2);
  EXPECT_EQ(o.color, Color::kBlue);
}

TEST(Options, EveryReasonInItsWords) {
  const auto [o, status] = Parse({{"on", int64_t{3}},
                                  {"count", int64_t{10}},
                                  {"width", int64_t{-3}},
                                  {"scale", std::numeric_limits<double>::infinity()},
                                  {"eps", 0.0},
                                  {"color", std::string("green")},
                                  {"speed", 1.5}});
  EXPECT_EQ(status,
            absl::InvalidArgumentError("sample: color must be one of red, blue, got \"green\"\n"
                                       "sample: count must be in 1..9, got 10\n"
                                       "sample: eps must be > 0, got 0\n"
                                       "sample: on must be a bool, got 3\n"
                                       "sample: scale must be finite, got inf\n"
                                       "sample: speed is not an option of this method, got 1.5\n"
                                       "sample: width must be >= -1, got -3"));
}

TEST(Options, WrongTypes) {
  EXPECT_EQ(Parse({{"count", 2.0}}).second.message(), "sample: count must be an integer, got 2");
  EXPECT_EQ(Parse({{"scale", true}}).second.message(), "sample: scale must be a number, got true");
  EXPECT_EQ(Parse({{"color", int64_t{1}}}).second.message(),
            "sample: color must be one of red, blue, got 1");
  EXPECT_EQ(Parse({{"scale", std::nan("")}}).second.message(),
            "sample: scale must be finite, got nan");
}

TEST(Options, SeedsAreUnsigned) {
  const auto read = [](const OptionValue& sent, uint64_t* seed) {
    Reasons reasons("sample");
    options_internal::ReadSeed("seed", sent, seed, &reasons);
    return std::string(reasons.status().message());
  };
  uint64_t seed = 0;
  EXPECT_EQ(read(int64_t{7}, &seed), "");
  EXPECT_EQ(seed, 7u);
  EXPECT_EQ(read(UINT64_MAX, &seed), "");
  EXPECT_EQ(seed, UINT64_MAX);
  EXPECT_EQ(read(int64_t{0}, &seed), "");
  EXPECT_EQ(seed, 0u);
  EXPECT_EQ(read(int64_t{-1}, &seed), "sample: seed must be in 0..2^64-1, got -1");
  EXPECT_EQ(read(1.5, &seed), "sample: seed must be an integer, got 1.5");
}

TEST(Options, UnservedOnesMayBeSetToTheirDefault) {
  EXPECT_TRUE(Parse({{"cap", 0.0}, {"norm", std::string("prefix")}}).second.ok());
  EXPECT_TRUE(Parse({{"cap", int64_t{0}}}).second.ok());
  EXPECT_EQ(Parse({{"cap", 30.0}, {"norm", std::string("joint")}}).second,
            absl::UnimplementedError("sample: cap is not served by this version, got 30\n"
                                     "sample: norm is not served by this version, got \"joint\""));
}

TEST(Options, TablesDescribeEachOption) {
  const SampleMethod method;
  const std::vector<OptionInfo>& infos = method.info().options;
  ASSERT_EQ(infos.size(), 11u);
  EXPECT_EQ(infos[1].range, "in 1..9");
  EXPECT_EQ(infos[2].range, ">= -1");
  EXPECT_EQ(infos[3].range, "finite");
  EXPECT_EQ(infos[4].range, "> 0");
  EXPECT_EQ(infos[5].enum_values, (std::vector<std::string>{"red", "blue"}));
  EXPECT_EQ(infos[9].default_text, "0");
  EXPECT_FALSE(infos[9].served);
  EXPECT_EQ(Name(infos[3].type), "float");
}

TEST(Options, DefaultsAreThoseOfTheMembers) {
  const SampleMethod method;
  std::vector<std::string> texts;
  for (const OptionInfo& info : method.info().options) texts.push_back(info.default_text);
  EXPECT_EQ(texts, (std::vector<std::string>{"false", "3", "required", "1/sqrt(D)", "1e-6", "red",
                                             "8,16", "5", "blue", "0", "\"prefix\""}));
}

TEST(Options, AnEmptyListIsTheDefault) {
  EXPECT_EQ(Parse({{"shape", std::vector<int64_t>{}}}).first.shape, (std::vector<int64_t>{8, 16}));
}

using Names = std::vector<std::string>;

TEST(Options, ListsOfNames) {
  using Colors = std::vector<Color>;
  EXPECT_EQ(Parse({{"colors", Names{"blue", "red"}}}).first.colors,
            (Colors{Color::kBlue, Color::kRed}));
  EXPECT_EQ(Parse({{"colors", Names{}}}).first.colors, Colors{Color::kBlue});
  const auto reason = [](const OptionValue& sent) {
    return std::string(Parse({{"colors", sent}}).second.message());
  };
  EXPECT_EQ(reason(Names{"red", "green"}),
            "sample: colors[1] must be one of red, blue, got \"green\"");
  EXPECT_EQ(reason(Names{"red", "blue", "red"}),
            "sample: colors[2] must not repeat a name, got \"red\"");
  EXPECT_EQ(reason(std::string("red")), "sample: colors must be a list of names, got \"red\"");
}

std::string Described(const OptionMap& sent) {
  Reasons reasons("sample");
  const OptionsHandle handle = SampleMethod().Parse(sent, &reasons);
  EXPECT_TRUE(reasons.empty());
  return SampleMethod().Describe(handle.get(), /*D=*/64);
}

// An option that was sent at its default value put the request into another bucket.
TEST(Options, DescriptionsLeaveOutDefaults) {
  EXPECT_EQ(Described({}), "");
  EXPECT_EQ(Described({{"on", false},
                       {"count", int64_t{3}},
                       {"eps", 1e-6},
                       {"color", std::string("red")},
                       {"shape", std::vector<int64_t>{8, 16}},
                       {"drawn", int64_t{5}},
                       {"colors", Names{"blue"}},
                       {"cap", int64_t{0}},
                       {"norm", std::string("prefix")}}),
            "");
  EXPECT_EQ(Described({{"shape", std::vector<int64_t>{}}}), "");
  EXPECT_EQ(Described({{"on", true},
                       {"count", int64_t{4}},
                       {"width", int64_t{0}},
                       {"scale", 0.1},
                       {"eps", int64_t{2}},
                       {"color", std::string("blue")},
                       {"shape", std::vector<int64_t>{8, 8}},
                       {"drawn", int64_t{0}},
                       {"colors", Names{"blue", "red"}}}),
            "on=true,count=4,width=0,scale=0.1,eps=2,color=\"blue\",shape=[8,8],drawn=0,"
            "colors=[\"blue\",\"red\"]");
}

// Buckets and messages stay short for a list of any length.
TEST(Options, ListsAboveSixtyFourValuesAreNotSpelledOut) {
  for (const auto& text : {BucketText, Shown}) {
    const std::vector<int64_t> most(64, 7), more(65, 7);
    EXPECT_EQ(text(most), ToString(OptionValue(most)));
    EXPECT_NE(text(more), ToString(OptionValue(more)));
    std::vector<int64_t> other = more;
    other.push_back(8);
    EXPECT_NE(text(more), text(other));
  }
}

TEST(Options, TextReadsBackAsTheSameNumber) {
  // Buckets are made of this text: two values must have different texts.
  EXPECT_EQ(ToString(OptionValue(0.1)), "0.1");
  EXPECT_NE(ToString(OptionValue(0.1)), ToString(OptionValue(std::nextafter(0.1, 1))));
  EXPECT_EQ(ToString(OptionValue(std::vector<int64_t>{1, 2})), "[1,2]");
}

}  // namespace
}  // namespace attnd
