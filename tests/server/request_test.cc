// Which envelopes are refused, with which text, and what the engine gets.
#include <cstring>

#include "absl/strings/str_join.h"
#include "tests/server/request_fixture.h"

namespace attnd {
namespace {

using ::testing::Pair;

// The ids of all methods in the order of MethodSpec.
std::string MethodIds() {
  const google::protobuf::OneofDescriptor& methods = *v1::MethodSpec::descriptor()->oneof_decl(0);
  std::vector<std::string> ids;
  for (int i = 0; i < methods.field_count(); ++i) ids.push_back(methods.field(i)->name());
  return absl::StrJoin(ids, ", ");
}

TEST(RequestTest, DecodesAGoodRequest) {
  auto draft = GoodDraft();
  draft.request.set_id("seven");
  draft.request.set_priority(-100);
  FakeEngine engine;
  const auto decoded = Decode(draft.request, draft.raw, engine.context);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->id, "seven");
  EXPECT_EQ(decoded->device, "cpu");
  EXPECT_EQ(decoded->priority, -100);
  EXPECT_EQ(decoded->call.method, "local");
  EXPECT_EQ(decoded->call.direction, Direction::kForward);
  EXPECT_THAT(decoded->call.options, ElementsAre(Pair("window_left", OptionValue(int64_t{4}))));
  EXPECT_EQ(decoded->payload_bytes, 3 * 4096);
  ASSERT_EQ(decoded->payloads.size(), 3u);
  ASSERT_EQ(decoded->payloads.at("k").size(), 1u);
  EXPECT_EQ(decoded->payloads.at("k")[0].data(), draft.memory.data());
  EXPECT_EQ(decoded->call.tensors.at("q").shape, (Shape{1, 2, 8, 64}));
  EXPECT_EQ(decoded->call.tensors.at("q").data, nullptr);
  EXPECT_NE(decoded->plan, nullptr);
}

TEST(RequestTest, DecodesTheDirection) {
  Draft<v1::BackwardRequest> draft;
  draft.request.mutable_method()->mutable_softmax();
  draft.Add("grad_out", {1, 1, 1, 1}, 4);
  const auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->call.direction, Direction::kBackward);
}

TEST(RequestTest, GradientsAreDeterministicUnlessTheRequestSaysFalse) {
  Draft<v1::BackwardRequest> draft;
  v1::EstimateRequest estimate;
  const auto decoded = [&] {
    const bool is =
        DecodeEnvelope(draft.request, draft.raw, {.devices = kDevices}).call.is_deterministic;
    EXPECT_EQ(DecodeEnvelope(estimate, {.devices = kDevices}).call.is_deterministic, is);
    return is;
  };
  EXPECT_TRUE(decoded());
  draft.request.set_deterministic(true), estimate.set_deterministic(true);
  EXPECT_TRUE(decoded());
  draft.request.set_deterministic(false), estimate.set_deterministic(false);
  EXPECT_FALSE(decoded());
}

TEST(RequestTest, TurnsBnhdShapesIntoBhnd) {
  auto draft = GoodDraft();
  draft.Add("x", {2, 3, 5, 7}, 2 * 3 * 5 * 7 * 2, v1::DType::bfloat16).set_layout(v1::Layout::BNHD);
  draft.Add("y", {2, 3, 5}, 2 * 3 * 5, v1::DType::uint8).set_layout(v1::Layout::BNHD);
  const auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const View& x = decoded->call.tensors.at("x");
  EXPECT_EQ(x.shape, (Shape{2, 5, 3, 7}));
  EXPECT_EQ(x.layout, Layout::kBNHD);
  EXPECT_EQ(x.dtype, DType::kBF16);
  EXPECT_THAT(absl::MakeSpan(x.stride).first(4), ElementsAre(105, 7, 35, 1));
  // The layout applies to rank 4 only.
  const View& y = decoded->call.tensors.at("y");
  EXPECT_EQ(y.shape, (Shape{2, 3, 5}));
  EXPECT_EQ(y.layout, Layout::kBHND);
}

TEST(RequestTest, CopiesLengthsFromUnalignedPieces) {
  auto draft = GoodDraft();
  const std::vector<int32_t> lengths = {5, -1, 1 << 30};
  std::memcpy(draft.memory.data() + 1, lengths.data(), 12);
  draft.Add("kv_lengths", {3}, 12, v1::DType::int32);
  const auto bytes = std::span<const std::byte>(draft.memory).subspan(1, 12);
  draft.raw.back() = {bytes.first(3), bytes.subspan(3, 2), bytes.subspan(5)};
  auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  // Also after a move, and after the message is destroyed.
  draft.memory.assign(draft.memory.size(), std::byte{0});
  const DecodedRequest moved = *std::move(decoded);
  const View& view = moved.call.tensors.at("kv_lengths");
  ASSERT_NE(view.data, nullptr);
  EXPECT_EQ(std::vector<int32_t>(view.As<int32_t>(), view.As<int32_t>() + 3), lengths);
}

TEST(RequestTest, EmptyTensorsAreFine) {
  Draft<v1::ForwardRequest> draft;
  draft.request.mutable_method()->mutable_softmax();
  draft.Add("q", {1, 2, 0, 64}, 0);
  draft.Add("kv_lengths", {0}, 0, v1::DType::int32);
  const auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_NE(decoded->call.tensors.at("kv_lengths").data, nullptr);
}

TEST(RequestTest, SeveralTensorsMayShareAPayload) {
  auto draft = GoodDraft();
  for (auto& tensor : *draft.request.mutable_tensors()) tensor.set_raw_index(0);
  draft.raw.resize(1);
  const auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->payload_bytes, 3 * 4096);
}

TEST(RequestTest, RefusesTheEnvelope) {
  auto draft = GoodDraft();
  draft.request.set_id(std::string(257, 'x'));
  draft.request.set_priority(101);
  draft.request.set_device("cuda:0\n");
  draft.request.clear_method();
  draft.request.GetReflection()->MutableUnknownFields(&draft.request)->AddVarint(99, 1);
  draft.request.GetReflection()->MutableUnknownFields(&draft.request)->AddVarint(99, 2);
  EXPECT_THAT(
      Refusal(draft),
      ElementsAre("request: fields must be those of attn.v1.ForwardRequest, got field 99",
                  "request: id must be at most 256 bytes, got 257",
                  "request: priority must be -100..100, got 101",
                  R"(request: device must be cpu or empty, got "cuda:0\n")",
                  absl::StrCat("request: method must be one of ", MethodIds(), ", got none")));
}

TEST(RequestTest, RefusesAMethodOfANewerClient) {
  auto draft = GoodDraft();
  v1::MethodSpec& method = *draft.request.mutable_method();
  method.clear_local();
  method.GetReflection()->MutableUnknownFields(&method)->AddLengthDelimited(1000, "");
  const auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(decoded.status().message(),
            absl::StrCat("request: method must be one of ", MethodIds(), ", got number 1000"));
  // Beside a known method it is an unknown field like any other.
  method.mutable_softmax();
  EXPECT_THAT(
      Refusal(draft),
      ElementsAre("request: method fields must be those of attn.v1.MethodSpec, got field 1000"));
}

TEST(RequestTest, RefusesUnknownOptions) {
  auto draft = GoodDraft();
  v1::Local& local = *draft.request.mutable_method()->mutable_local();
  local.GetReflection()->MutableUnknownFields(&local)->AddVarint(42, 1);
  EXPECT_THAT(Refusal(draft),
              ElementsAre("local: options must be those of attn.v1.Local, got field 42"));
}

TEST(RequestTest, PassesUnknownEnumNumbersForTheMethodToRefuse) {
  auto draft = GoodDraft();
  auto& map = *draft.request.mutable_method()->mutable_linear_attention();
  map.set_feature_map(static_cast<v1::LinearAttention::FeatureMap::Value>(77));
  const auto decoded = Decode(draft.request, draft.raw, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->call.options.at("feature_map"), OptionValue(std::string("77")));
}

TEST(RequestTest, RefusesTensorsThatCannotBeRead) {
  Draft<v1::ForwardRequest> draft;
  draft.request.mutable_method()->mutable_softmax();
  draft.Add("", {1}, 4);
  draft.Add(std::string(65, 'x'), {1}, 4);
  draft.Add("a\n\"b", {1}, 4);
  draft.Add("rank", {1, 1, 1, 1, 1}, 4);
  draft.Add("negative", {2, -1}, 4);
  draft.Add("overflow", {int64_t{1} << 62, 2, 2, 2}, 4);
  draft.Add("hidden_overflow", {0, int64_t{1} << 62, int64_t{1} << 62}, 0);
  draft.Add("large", {(int64_t{1} << 39) + 1}, 4, v1::DType::float16);
  draft.Add("none", {1}, 4, v1::DType::unspecified);
  draft.Add("strange", {1}, 4, static_cast<v1::DType::Value>(9))
      .set_layout(static_cast<v1::Layout::Value>(2));
  v1::Tensor& newer = draft.Add("newer", {1}, 4);
  newer.GetReflection()->MutableUnknownFields(&newer)->AddVarint(6, 1);
  draft.Add("q_lengths", {(1 << 20) + 1}, 4, v1::DType::int32);
  draft.raw.back() = Spans(((1 << 20) + 1) / 16384, std::span(draft.memory));
  draft.raw.back().push_back(std::span(draft.memory).first(4));
  const std::string rule = "name must be 1 to 64 letters, digits or _, got ";
  EXPECT_THAT(
      Refusal(draft),
      ElementsAre(
          "request: tensors[0] " + rule + "\"\"",
          "request: tensors[1] " + rule + "\"" + std::string(64, 'x') + "...\"",
          "request: tensors[2] " + rule + R"("a\n\"b")",
          "request: tensor \"rank\" shape must have at most 4 dimensions, got 5",
          "request: tensor \"negative\" shape must not be negative, got [2,-1]",
          "request: tensor \"overflow\" shape must hold at most 1099511627776 bytes, got "
          "float32 [4611686018427387904,2,2,2]",
          "request: tensor \"hidden_overflow\" shape must hold at most 1099511627776 bytes,"
          " got float32 [0,4611686018427387904,4611686018427387904]",
          "request: tensor \"large\" shape must hold at most 1099511627776 bytes, got "
          "float16 [549755813889]",
          "request: tensor \"none\" dtype must be float32, float16, bfloat16, int32 or "
          "uint8, got unspecified",
          "request: tensor \"strange\" dtype must be float32, float16, bfloat16, int32 or "
          "uint8, got number 9",
          "request: tensor \"strange\" layout must be BHND or BNHD, got number 2",
          "request: tensor \"newer\" fields must be those of attn.v1.Tensor, got field 6",
          "request: tensor \"q_lengths\" shape must hold at most 1048576 elements when it is "
          "int32 of rank 1, got 1048577"));
}

TEST(RequestTest, RefusesPayloadsThatDoNotFit) {
  auto draft = GoodDraft();
  draft.raw[0] = {std::span(draft.memory).first(4095)};
  draft.raw[1] = {std::span(draft.memory).first(4000), std::span(draft.memory).first(97)};
  draft.request.mutable_tensors(2)->clear_content();
  draft.Add("far", {1}, 4).set_raw_index(4);
  draft.Add("kv_lengths", {2}, 9, v1::DType::int32).set_raw_index(3);
  draft.raw.pop_back();
  EXPECT_THAT(
      Refusal(draft),
      ElementsAre(
          R"(request: tensor "q" payload must be 4096 bytes for float32 [1,2,8,64], got 4095)",
          R"(request: tensor "k" payload must be 4096 bytes for float32 [1,2,8,64], got 4097)",
          R"(request: tensor "v" raw_index must be set, got none)",
          R"(request: tensor "far" raw_index must be below the number of payloads 4, got 4)",
          R"(request: tensor "kv_lengths" payload must be 8 bytes for int32 [2], got 4)",
          R"(request: raw[2] must belong to a tensor, got 4096 bytes that none refers to)"));
}

TEST(RequestTest, ShapesInReasonsAreThoseThatWereSent) {
  auto draft = GoodDraft();
  draft.Add("x", {2, 3, 5, 7}, 1, v1::DType::uint8).set_layout(v1::Layout::BNHD);
  EXPECT_THAT(Refusal(draft),
              ElementsAre("request: tensor \"x\" payload must be 210 bytes for uint8 [2,3,5,7], "
                          "got 1"));
}

TEST(RequestTest, RefusesATensorSentTwice) {
  auto draft = GoodDraft();
  draft.Add("k", {1}, 4);
  draft.Add("k", {1}, 4);
  EXPECT_THAT(Refusal(draft),
              ElementsAre(R"(request: tensor "k" must be sent at most once, got 3)"));
}

TEST(RequestTest, ChecksOptionsWhenTensorsCannotBeDescribed) {
  auto draft = GoodDraft();
  draft.request.mutable_method()->mutable_local()->set_window_left(-3);
  draft.request.mutable_tensors(0)->set_dtype(v1::DType::unspecified);
  FakeEngine engine;
  EXPECT_THAT(Refusal(draft, engine.context),
              ElementsAre("request: tensor \"q\" dtype must be float32, float16, bfloat16, int32 "
                          "or uint8, got unspecified",
                          "local: window_left must be >= -1, got -3"));
  EXPECT_FALSE(engine.was_asked);
}

std::vector<int32_t> IntegersOf(const DecodedRequest& decoded, const std::string& name) {
  const View& view = decoded.call.tensors.at(name);
  EXPECT_NE(view.data, nullptr) << name;
  if (view.data == nullptr) return {};
  return {view.As<int32_t>(), view.As<int32_t>() + view.shape.size()};
}

// Adds a tensor without values to the estimate.
void Describe(const std::string& name, std::vector<int64_t> shape, v1::DType::Value dtype,
              v1::EstimateRequest* request) {
  v1::Tensor& tensor = *request->add_tensors();
  tensor.set_name(name);
  tensor.set_dtype(dtype);
  for (int64_t d : shape) tensor.add_shape(d);
}

TEST(RequestTest, EstimateTakesLengthsAsFullAndSequencesAsEquallyLong) {
  v1::EstimateRequest request;
  request.mutable_method()->mutable_softmax();
  request.set_backward(true);
  Describe("q", {2, 8, 3, 64}, v1::DType::float32, &request);
  Describe("k", {2, 8, 11, 64}, v1::DType::float32, &request);
  for (const char* name : {"q_lengths", "kv_lengths", "causal_offset", "other"}) {
    Describe(name, {2}, v1::DType::int32, &request);
  }
  Describe("cu_seqlens_q", {1}, v1::DType::int32, &request);
  Describe("cu_seqlens_k", {5}, v1::DType::int32, &request);
  const auto decoded = Decode(request, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->call.direction, Direction::kBackward);
  EXPECT_THAT(decoded->payloads, IsEmpty());
  EXPECT_THAT(IntegersOf(*decoded, "q_lengths"), ElementsAre(3, 3));
  EXPECT_THAT(IntegersOf(*decoded, "kv_lengths"), ElementsAre(11, 11));
  EXPECT_THAT(IntegersOf(*decoded, "causal_offset"), ElementsAre(8, 8));
  EXPECT_THAT(IntegersOf(*decoded, "cu_seqlens_q"), ElementsAre(0));
  EXPECT_THAT(IntegersOf(*decoded, "cu_seqlens_k"), ElementsAre(0, 2, 5, 8, 11));
  EXPECT_EQ(decoded->call.tensors.at("other").data, nullptr) << "no plan reads it";
}

TEST(RequestTest, EstimateTakesTheValuesThatAPlanReads) {
  v1::EstimateRequest request;
  request.mutable_method()->mutable_softmax();
  Describe("q", {1, 8, 9, 64}, v1::DType::float32, &request);
  Describe("cu_seqlens_q", {3}, v1::DType::int32, &request);
  request.mutable_tensors(1)->set_raw_index(0);
  const int32_t bounds[] = {0, 2, 9};
  request.add_raw(bounds, sizeof(bounds));
  const auto decoded = Decode(request, {.devices = kDevices});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_THAT(IntegersOf(*decoded, "cu_seqlens_q"), ElementsAre(0, 2, 9));
  EXPECT_THAT(decoded->payloads, IsEmpty());
  EXPECT_EQ(decoded->payload_bytes, 0);

  request.mutable_raw(0)->pop_back();
  request.add_raw("spare");
  EXPECT_EQ(Decode(request, {.devices = kDevices}).status().message(),
            "request: tensor \"cu_seqlens_q\" payload must be 12 bytes for int32 [3], got 11\n"
            "request: raw[1] must belong to a tensor, got 5 bytes that none refers to");
  while (request.raw_size() <= 1024) request.add_raw("");
  EXPECT_EQ(Decode(request, {.devices = kDevices}).status().message(),
            "message: raw must have at most 1024 entries, got 1025");
}

TEST(RequestTest, EstimateTakesNoOtherPayload) {
  v1::EstimateRequest request;
  request.mutable_method()->mutable_softmax();
  request.set_device("tpu");
  Describe("q", {}, v1::DType::float32, &request);
  request.mutable_tensors(0)->set_raw_index(0);
  request.add_raw("data");
  EXPECT_EQ(Decode(request, {.devices = kDevices}).status().message(),
            "request: device must be cpu or empty, got \"tpu\"\n"
            "request: tensor \"q\" raw_index must not be set in an estimate but of lengths, "
            "offsets and cu_seqlens, got 0");
}

TEST(RequestTest, EstimateBoundsTheValuesThatItMakesUp) {
  v1::EstimateRequest request;
  request.mutable_method()->mutable_softmax();
  Describe("kv_lengths", {kMaxAssumedElements}, v1::DType::int32, &request);
  EXPECT_TRUE(Decode(request, {.devices = kDevices}).ok());
  request.mutable_tensors(0)->set_shape(0, kMaxAssumedElements + 1);
  EXPECT_EQ(Decode(request, {.devices = kDevices}).status().message(),
            "request: tensor \"kv_lengths\" shape must hold at most 65536 elements when it is "
            "int32 of rank 1 and its values are not sent, got 65537");
}

}  // namespace
}  // namespace attnd
