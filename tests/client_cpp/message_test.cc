// Messages agree with protobuf to the byte, and payloads stay where they are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "message.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  return slices;
}

std::string TextOf(const grpc::ByteBuffer& bytes) {
  std::string text;
  for (const grpc::Slice& slice : SlicesOf(bytes)) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// Cut into slices of `piece` bytes, as a network does.
grpc::ByteBuffer Cut(const std::string& text, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < text.size(); at += piece) slices.emplace_back(text.substr(at, piece));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(Message, RequestIsWhatProtobufReads) {
  const auto q = Values(3), k = Values(5000, 7);
  const std::vector<int32_t> lengths = {2};
  Request request;
  request.method.mutable_local()->set_window_left(3);
  request.device = "cpu";
  request.priority = -7;
  request.tensors = {
      {.name = "q", .shape = {1, 3, 1, 1}, .data = q.data(), .layout = Layout::BNHD},
      {.name = "k", .shape = {1, 1, 5000, 1}, .data = k.data()},
      {.name = "v", .shape = {1, 1, 5000, 1}, .data = k.data()},
      {.name = "kv_lengths", .shape = {1}, .data = lengths.data(), .dtype = DType::int32},
      {.name = "nothing", .shape = {0, 4}}};
  const auto message = EncodeRequest(Direction::kForward, request);
  ASSERT_TRUE(message.ok()) << message.status();
  attn::v1::ForwardRequest read;
  ASSERT_TRUE(read.ParseFromString(TextOf(message->bytes)));
  EXPECT_EQ(read.method().local().window_left(), 3);
  EXPECT_EQ(read.device(), "cpu");
  EXPECT_EQ(read.priority(), -7);
  ASSERT_EQ(read.tensors_size(), 5);
  EXPECT_EQ(read.tensors(0).layout(), Layout::BNHD);
  EXPECT_EQ(read.tensors(0).shape_size(), 4);
  EXPECT_EQ(read.tensors(3).dtype(), DType::int32);
  // k and v are the same memory.
  EXPECT_EQ(read.tensors(1).raw_index(), read.tensors(2).raw_index());
  ASSERT_EQ(read.raw_size(), 4);
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  };
  EXPECT_EQ(read.raw(read.tensors(0).raw_index()), bytes_of(q));
  EXPECT_EQ(read.raw(read.tensors(1).raw_index()), bytes_of(k));
  EXPECT_EQ(read.raw(read.tensors(3).raw_index()), bytes_of(lengths));
  EXPECT_EQ(read.raw(read.tensors(4).raw_index()), "");
}

// Tensors of different sizes over the same memory were sent as one payload.
TEST(Message, TensorsThatBeginTogetherTravelAlone) {
  const auto x = Values(5000);
  Request request;
  request.tensors = {{.name = "q", .shape = {4000}, .data = x.data()},
                     {.name = "k", .shape = {5000}, .data = x.data()},
                     {.name = "v", .shape = {50, 100}, .data = x.data()},
                     {.name = "none", .shape = {0}, .data = x.data()}};
  const auto message = EncodeRequest(Direction::kForward, request);
  ASSERT_TRUE(message.ok()) << message.status();
  attn::v1::ForwardRequest read;
  ASSERT_TRUE(read.ParseFromString(TextOf(message->bytes)));
  std::vector<size_t> sizes;
  for (const auto& tensor : read.tensors()) sizes.push_back(read.raw(tensor.raw_index()).size());
  EXPECT_EQ(sizes, (std::vector<size_t>{16'000, 20'000, 20'000, 0}));
  EXPECT_EQ(read.tensors(1).raw_index(), read.tensors(2).raw_index());
  EXPECT_EQ(read.raw_size(), 3);
}

TEST(Message, RunRequestHasThePayloadsOutside) {
  const auto q = Values(5000);
  const auto message = EncodeRun("17", Direction::kBackward, RequestOf(q));
  ASSERT_TRUE(message.ok());
  attn::v1::RunRequest read;
  ASSERT_TRUE(read.ParseFromString(TextOf(message->bytes)));
  EXPECT_EQ(read.id(), "17");
  EXPECT_EQ(read.backward().tensors(0).name(), "q");
  EXPECT_EQ(read.backward().raw_size(), 0);
  ASSERT_EQ(read.raw_size(), 1);
  EXPECT_EQ(read.raw(0).size(), q.size() * 4);
}

TEST(Message, OnlyABackwardThatNeedNotBeDeterministicSaysSo) {
  const auto q = Values(4);
  Request request = RequestOf(q);
  attn::v1::BackwardRequest read;
  for (const bool is : {true, false}) {
    request.deterministic = is;
    const auto message = EncodeRequest(Direction::kBackward, request);
    ASSERT_TRUE(message.ok());
    ASSERT_TRUE(read.ParseFromString(TextOf(message->bytes)));
    EXPECT_EQ(read.has_deterministic(), !is);
    EXPECT_FALSE(read.deterministic());
  }
}

TEST(Message, PayloadsAreSentFromWhereTheyLie) {
  const auto q = Values(100'000);
  const auto message = EncodeRequest(Direction::kForward, RequestOf(q));
  ASSERT_TRUE(message.ok());
  bool is_there = false;
  for (const grpc::Slice& slice : SlicesOf(message->bytes)) {
    is_there |= static_cast<const void*>(slice.begin()) == q.data() && slice.size() == 400'000;
  }
  EXPECT_TRUE(is_there);
}

TEST(Message, LoanReturnsWithTheLastSlice) {
  const auto q = Values(5000), k = Values(6000), few = Values(10);
  Request request = RequestOf(q);
  request.tensors.push_back({.name = "k", .shape = {6000}, .data = k.data()});
  auto message = EncodeRequest(Direction::kForward, request);
  ASSERT_TRUE(message.ok());
  const Loan loan = message->loan;
  grpc::ByteBuffer sending = message->bytes;
  EXPECT_FALSE(loan.has_returned());
  message->bytes.Clear();
  EXPECT_FALSE(loan.has_returned());
  sending.Clear();
  EXPECT_TRUE(loan.has_returned());
  // Copied, so nothing is lent.
  EXPECT_TRUE(EncodeRequest(Direction::kForward, RequestOf(few))->loan.has_returned());
}

TEST(Message, OwnersAreHeldInsteadOfALoan) {
  auto owner = std::make_shared<std::vector<float>>(Values(5000));
  Request request = RequestOf(*owner);
  request.tensors[0].owner = owner;
  auto message = EncodeRequest(Direction::kForward, request);
  ASSERT_TRUE(message.ok());
  EXPECT_TRUE(message->loan.has_returned());
  request = {};
  const std::weak_ptr<std::vector<float>> held = owner;
  owner.reset();
  EXPECT_FALSE(held.expired());
  message->bytes.Clear();
  EXPECT_TRUE(held.expired());
}

TEST(Message, WrongTensors) {
  const auto q = Values(1);
  const auto reason = [&](const Tensor& tensor) {
    Request request;
    request.tensors = {tensor};
    return std::string(EncodeRequest(Direction::kForward, request).status().message());
  };
  EXPECT_EQ(reason({.name = "q", .shape = {1}, .data = q.data(), .dtype = DType::unspecified}),
            "request: q.dtype must be one of attn.v1.DType, got 0");
  const std::string rule =
      "request: q.shape must have dimensions >= 0 and at most 2147483631 bytes, got ";
  EXPECT_EQ(reason({.name = "q", .shape = {4, -1}, .data = q.data()}), rule + "[4,-1]");
  EXPECT_EQ(reason({.name = "q", .shape = {1 << 30, 1 << 30, 16}, .data = q.data()}),
            rule + "[1073741824,1073741824,16]");
  EXPECT_EQ(reason({.name = "q", .shape = {2}}),
            "request: q.data must not be null, got null for 8 bytes");
}

TEST(Message, ReplyTensorsAreTheReceivedBytesHoweverCut) {
  const auto out = Values(50'000);
  attn::v1::BackwardReply reply;
  for (const char* name : {"q", "k"}) {
    attn::v1::Tensor* tensor = reply.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(DType::float32);
    tensor->add_shape(50'000);
    tensor->set_raw_index(0);
  }
  reply.mutable_stats()->set_flops(5);
  reply.add_raw(out.data(), out.size() * 4);
  for (const size_t piece : {1013, 8191, 1 << 20}) {
    const grpc::ByteBuffer bytes = Cut(reply.SerializeAsString(), piece);
    const auto read = DecodeReply(Direction::kBackward, bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->stats().flops(), 5);
    const ReplyTensor *q = read->Find("q"), *k = read->Find("k");
    ASSERT_TRUE(q != nullptr && k != nullptr);
    EXPECT_EQ(k->ToVector<float>(), out);
    // Not copied: the last piece ends where the last slice of the message does.
    const auto slices = SlicesOf(bytes);
    ASSERT_FALSE(q->pieces.empty() || slices.empty());
    EXPECT_EQ(q->pieces.back().data() + q->pieces.back().size(),
              reinterpret_cast<const std::byte*>(slices.back().end()));
  }
}

// An index one beyond the last payload was read as a valid one.
TEST(Message, ReplyTensorsWithoutAPayload) {
  attn::v1::ForwardReply reply;
  attn::v1::Tensor* tensor = reply.add_tensors();
  tensor->set_name("out");
  tensor->set_dtype(DType::float32);
  tensor->add_shape(0);
  const auto status = [&] {
    return DecodeReply(Direction::kForward, Cut(reply.SerializeAsString(), 1000)).status();
  };
  EXPECT_EQ(status(), absl::InternalError("reply: out has no payload"));
  reply.add_raw("");
  EXPECT_EQ(status(), absl::InternalError("reply: out has no payload"));
  for (const uint32_t index : {1u, 2u, UINT32_MAX}) {
    tensor->set_raw_index(index);
    EXPECT_EQ(status(), absl::InternalError("reply: out has no payload")) << index;
  }
  tensor->set_raw_index(0);
  EXPECT_TRUE(status().ok());
}

TEST(Message, RepliesOutliveTheirMessageAndTheirSource) {
  attn::v1::ForwardReply reply;
  attn::v1::Tensor* tensor = reply.add_tensors();
  tensor->set_name("out");
  tensor->set_dtype(DType::uint8);
  tensor->add_shape(200'000);
  tensor->set_raw_index(0);
  reply.add_raw(std::string(200'000, 'x'));
  Reply copy;
  {
    const auto read = DecodeReply(Direction::kForward, Cut(reply.SerializeAsString(), 1000));
    ASSERT_TRUE(read.ok());
    copy = *read;
  }
  ASSERT_NE(copy.Find("out"), nullptr);
  EXPECT_EQ(copy.Find("out")->ToVector<char>(), std::vector<char>(200'000, 'x'));
}

TEST(Method, TextFormat) {
  const auto local = ParseMethod(" local{window_left:64 causal:true} ");
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->local().window_left(), 64);
  EXPECT_TRUE(local->local().causal());
  EXPECT_TRUE(ParseMethod("softmax")->has_softmax());
  for (const char* wrong : {"", "exact", "local{window:3}", "local{", "local{window_left:x}"}) {
    const absl::Status status = ParseMethod(wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_EQ(status.message().substr(0, 15), "request: method") << status;
  }
}

}  // namespace
}  // namespace attnd::client
