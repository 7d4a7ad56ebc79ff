// SplitMessage accepts what protobuf accepts and finds the same fields.
#include "proto/wire/codec.h"

#include <array>
#include <random>

#include "absl/strings/str_cat.h"
#include "attn/v1/attention.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"

namespace attnd {
namespace {

using attn::v1::BackwardRequest;
using attn::v1::ForwardRequest;
using ::testing::StartsWith;

using Slices = std::vector<std::span<const std::byte>>;

std::span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Join(const Spans& spans) {
  std::string joined;
  for (const auto& span : spans) {
    joined.append(reinterpret_cast<const char*>(span.data()), span.size());
  }
  return joined;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// The same value in `size` bytes, more than needed.
std::string LongVarint(uint64_t value, size_t size) {
  std::string bytes;
  for (size_t i = 0; i + 1 < size; ++i, value >>= 7)
    bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value & 0x7f));
  return bytes;
}

std::string Tag(uint32_t number, uint32_t wire_type) { return Varint(number << 3 | wire_type); }
std::string LengthField(uint32_t number, absl::string_view value) {
  return absl::StrCat(Tag(number, 2), Varint(value.size()), value);
}
std::string Group(uint32_t number, absl::string_view body) {
  return absl::StrCat(Tag(number, 3), body, Tag(number, 4));
}
std::string NestedGroups(int depth) {
  std::string bytes;
  for (int i = 0; i < depth; ++i) bytes = Group(20, bytes);
  return bytes;
}

// Deterministic on every machine, unlike the distributions of <random>.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  size_t Below(size_t bound) { return engine_() % bound; }
  bool OneIn(size_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

// A message cut into slices with separate memory, so that sanitizers detect reads beyond a slice.
struct Cut {
  std::vector<std::vector<std::byte>> owned;
  Slices slices;
};

Cut CutAtRandom(absl::string_view message, Dice& dice) {
  const size_t longest = std::array<size_t, 4>{1, 3, 40, 100000}[dice.Below(4)];
  Cut cut;
  for (auto rest = Bytes(message); !rest.empty();) {
    if (dice.OneIn(8)) cut.owned.emplace_back();
    const auto piece = rest.first(std::min(rest.size(), 1 + dice.Below(longest)));
    cut.owned.emplace_back(piece.begin(), piece.end());
    rest = rest.subspan(piece.size());
  }
  for (const auto& piece : cut.owned) cut.slices.emplace_back(piece);
  return cut;
}

bool Lies(std::span<const std::byte> span, const Slices& slices) {
  for (const auto& slice : slices) {
    if (span.data() >= slice.data() && span.data() + span.size() <= slice.data() + slice.size()) {
      return true;
    }
  }
  return false;
}

// True if protobuf accepts `bytes`. Fails the test when SplitMessage differs in any way.
template <class Request>
bool Agree(const std::string& bytes, const Slices& slices) {
  Request whole;
  const bool is_valid = whole.ParseFromString(bytes);
  Request head;
  std::vector<Spans> raw;
  const absl::Status status = SplitMessage(slices, &head, &raw);
  EXPECT_EQ(status.ok(), is_valid) << status;
  if (!status.ok()) {
    EXPECT_THAT(std::string(status.message()), StartsWith("message: "));
    return is_valid;
  }

  EXPECT_EQ(head.raw_size(), 0);
  for (const Spans& payload : raw) {
    for (const auto& span : payload) EXPECT_TRUE(Lies(span, slices));
    head.add_raw(Join(payload));
  }
  EXPECT_EQ(head.SerializeAsString(), whole.SerializeAsString());
  return is_valid;
}

bool AgreeWhole(const std::string& bytes) { return Agree<ForwardRequest>(bytes, {Bytes(bytes)}); }

std::string Payload(Dice& dice, size_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(dice.Below(256));
  return bytes;
}

ForwardRequest TypicalRequest(Dice& dice, int tensors) {
  ForwardRequest request;
  request.set_id(absl::StrCat("request ", dice.Below(1000)));
  auto& local = *request.mutable_method()->mutable_local();
  local.set_window_left(static_cast<int64_t>(dice.Below(300)) - 1);
  local.set_scale(0.125);
  if (dice.OneIn(2)) local.set_granularity(attn::v1::Local::Granularity::block);
  if (dice.OneIn(2)) request.set_device("cpu");
  if (dice.OneIn(2)) request.set_priority(-7);
  for (int i = 0; i < tensors; ++i) {
    attn::v1::Tensor& tensor = *request.add_tensors();
    tensor.set_name(std::string(1, static_cast<char>('k' + i)));
    tensor.set_dtype(attn::v1::DType::float16);
    for (int64_t d : {2, 1, 5, 4}) tensor.add_shape(d);
    tensor.set_raw_index(i);
    request.add_raw(Payload(dice, dice.OneIn(4) ? dice.Below(700) : dice.Below(12)));
  }
  return request;
}

// Valid messages in shapes that a generated client would and would not write.
std::vector<std::string> Corpus(Dice& dice) {
  std::vector<std::string> corpus = {"", LengthField(15, ""), LengthField(1, "x")};
  for (int tensors = 0; tensors < 6; ++tensors) {
    const std::string typical = TypicalRequest(dice, tensors).SerializeAsString();
    corpus.push_back(typical);
    corpus.push_back(absl::StrCat(LengthField(15, "first"), typical, LengthField(15, "last")));
    corpus.push_back(
        absl::StrCat(typical, LengthField(99, "unknown"), Tag(98, 0), Varint(1u << 31)));
  }
  const std::string payload = LengthField(15, "payload");
  const std::vector<std::string> odd = {
      absl::StrCat(Tag(15, 0), Varint(300)),  // field 15 of other wire types is no payload
      absl::StrCat(Tag(15, 1), "12345678"),
      absl::StrCat(Tag(15, 5), "1234"),
      Group(15, LengthField(3, "in the group")),
      Group(7, LengthField(15, "no payload in here")),
      Group(7, absl::StrCat(Group(7, Tag(2, 0) + "\x01"), Group(9, LengthField(15, "deep")))),
      NestedGroups(40),
      absl::StrCat(Tag(1, 5), "abcd"),  // known fields of other wire types
      absl::StrCat(Tag(2, 0), Varint(UINT64_MAX)),
      absl::StrCat(Tag(5, 0), LongVarint(5, 10)),
      absl::StrCat(LongVarint(15 << 3 | 2, 5), Varint(4), "long"),
      absl::StrCat(Tag(15, 2), LongVarint(4, 5), "long"),
      absl::StrCat(Tag((1 << 29) - 1, 1), "12345678"),
      LengthField(2, LengthField(1, "")),
      LengthField(2, LengthField(18, absl::StrCat(Tag(3, 1), std::string(8, '\x7f')))),
      LengthField(3, absl::StrCat(LengthField(3, "\x01\x02\x80\x01"), Tag(3, 0), Varint(9))),
      LengthField(3, Group(5, Tag(1, 0) + "\x01")),
  };
  for (const std::string& field : odd) {
    corpus.push_back(field);
    corpus.push_back(absl::StrCat(payload, field, payload, payload, field));
  }
  return corpus;
}

// One small change at a random place.
std::string Mutate(std::string bytes, const std::vector<std::string>& corpus, Dice& dice) {
  const size_t at = dice.Below(bytes.size() + 1);
  switch (dice.Below(7)) {
    case 0:  // flip a bit
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << dice.Below(8)));
      break;
    case 1:  // another byte
      if (at < bytes.size()) bytes[at] = static_cast<char>(dice.Below(256));
      break;
    case 2:  // cut off
      bytes.resize(at);
      break;
    case 3:  // insert a few bytes
      bytes.insert(at, Payload(dice, 1 + dice.Below(4)));
      break;
    case 4:  // remove a few bytes
      bytes.erase(at, 1 + dice.Below(4));
      break;
    case 5: {  // splice two messages
      const std::string& other = corpus[dice.Below(corpus.size())];
      bytes = absl::StrCat(bytes.substr(0, at), other.substr(dice.Below(other.size() + 1)));
      break;
    }
    default:  // repeat a part
      bytes.insert(dice.Below(bytes.size() + 1), bytes.substr(at, dice.Below(40)));
  }
  return bytes;
}

class CodecTest : public ::testing::Test {
 protected:
  // Protobuf reports invalid UTF-8 on stderr, thousands of times here.
  google::protobuf::LogSilencer silencer_;
};

TEST_F(CodecTest, AgreesWithProtobufOnValidMessages) {
  Dice dice(1);
  for (const std::string& message : Corpus(dice)) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(Agree<ForwardRequest>(message, CutAtRandom(message, dice).slices));
      EXPECT_TRUE(Agree<BackwardRequest>(message, CutAtRandom(message, dice).slices));
    }
    ASSERT_FALSE(HasFailure()) << testing::PrintToString(message);
  }
}

TEST_F(CodecTest, AgreesWithProtobufOnMutatedMessages) {
  Dice dice(2);
  const std::vector<std::string> corpus = Corpus(dice);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string message = corpus[dice.Below(corpus.size())];
    for (size_t changes = 1 + dice.Below(3); changes > 0; --changes) {
      message = Mutate(std::move(message), corpus, dice);
    }
    const Cut cut = CutAtRandom(message, dice);
    const bool is_valid = i % 2 == 0 ? Agree<ForwardRequest>(message, cut.slices)
                                     : Agree<BackwardRequest>(message, cut.slices);
    ++(is_valid ? accepted : refused);
    ASSERT_FALSE(HasFailure()) << "mutation " << i << ": " << testing::PrintToString(message);
  }
  // Both valid and invalid messages occur often.
  EXPECT_GT(accepted, 8000);
  EXPECT_GT(refused, 8000);
}

TEST_F(CodecTest, AgreesOnEveryShortTag) {
  // All tags of one and two bytes with a few bytes after them, and all values of a fifth byte.
  for (int tag = 0; tag < 1 << 14; ++tag) {
    for (const char* rest : {"", "\x01z", "\x80"}) {
      const std::string bytes = absl::StrCat(Varint(tag), rest);
      AgreeWhole(bytes);
      ASSERT_FALSE(HasFailure()) << testing::PrintToString(bytes);
    }
  }
  for (int fifth = 0; fifth < 256; ++fifth) {
    const std::string tag =
        absl::StrCat("\xfa\x80\x80\x80", std::string(1, static_cast<char>(fifth)));
    AgreeWhole(absl::StrCat(tag, "\x01z"));
    AgreeWhole(absl::StrCat(tag, std::string("\0\x01z", 3)));
  }
}

TEST_F(CodecTest, AgreesOnTheLimitsOfVarintsLengthsAndGroups) {
  EXPECT_TRUE(AgreeWhole(absl::StrCat(Tag(30, 0), LongVarint(1, 10))));
  EXPECT_FALSE(AgreeWhole(absl::StrCat(Tag(30, 0), LongVarint(1, 11))));
  EXPECT_TRUE(AgreeWhole(absl::StrCat(Tag(30, 0), "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")));
  EXPECT_TRUE(AgreeWhole(absl::StrCat(Tag(15, 2), LongVarint(1, 5), "z")));
  EXPECT_FALSE(AgreeWhole(absl::StrCat(Tag(15, 2), LongVarint(1, 6), "z")));
  EXPECT_FALSE(AgreeWhole(absl::StrCat(LongVarint(15 << 3 | 2, 6), "\x01z")));
  for (uint64_t length : {0x7fffffefull, 0x7ffffff0ull, 0xffffffffull, 0x100000001ull}) {
    EXPECT_FALSE(AgreeWhole(absl::StrCat(Tag(15, 2), Varint(length), "z")));
  }
  // Protobuf follows 100 levels of groups.
  EXPECT_TRUE(AgreeWhole(NestedGroups(100)));
  EXPECT_FALSE(AgreeWhole(NestedGroups(101)));
  EXPECT_FALSE(AgreeWhole(Tag(20, 3)));
  EXPECT_FALSE(AgreeWhole(Tag(20, 4)));
  EXPECT_FALSE(AgreeWhole(absl::StrCat(Tag(20, 3), Tag(21, 4))));
  EXPECT_FALSE(AgreeWhole(absl::StrCat(Tag(20, 3), LengthField(15, "z"))));
}

TEST_F(CodecTest, SaysWhatIsWrongAndWhere) {
  const auto reason = [](const std::string& bytes) {
    ForwardRequest head;
    std::vector<Spans> raw;
    const absl::Status status = SplitMessage(Slices{Bytes(bytes)}, &head, &raw);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(reason(absl::StrCat(LengthField(15, "abc"), Tag(15, 2), "\x05xyz")),
            "message: bytes must be a valid attn.v1.ForwardRequest, got a field that is cut off in "
            "the field at byte 5");
  EXPECT_EQ(reason(LengthField(1, "\xff")),
            "message: bytes must be a valid attn.v1.ForwardRequest, got a malformed field inside a "
            "field, or text that is not UTF-8");
}

TEST_F(CodecTest, LimitsWhatIsNotPayload) {
  const auto split = [](const std::string& bytes) {
    ForwardRequest head;
    std::vector<Spans> raw;
    return SplitMessage(Slices{Bytes(bytes)}, &head, &raw);
  };
  const std::string large(kMaxHeadBytes, 'x');
  const absl::string_view fits = absl::string_view(large).substr(5);  // tag, length: 2 + 3 bytes
  EXPECT_TRUE(split(LengthField(99, fits)).ok());
  const std::string too_long = "message: everything but raw must fit in 262144 bytes, got more";
  EXPECT_EQ(split(LengthField(99, large)).message(), too_long);
  EXPECT_EQ(split(absl::StrCat(LengthField(99, fits), Tag(1, 0), "\x01")).message(), too_long);
  EXPECT_TRUE(split(LengthField(15, large + large)).ok());

  std::string many;
  for (size_t i = 0; i < kMaxRawEntries; ++i) many += LengthField(15, "");
  EXPECT_TRUE(split(many).ok());
  EXPECT_EQ(split(many + LengthField(15, "")).message(),
            "message: raw must have at most 1024 entries, got more");
}

TEST_F(CodecTest, TakesMoreThanTwoGibibytesOfPayloads) {
  // Given payloads whose slices all refer to the same memory.
  const std::vector<std::byte> piece(1 << 20);
  const auto append = [&piece](const std::string& header, int64_t size, Slices* slices) {
    slices->push_back(Bytes(header));
    for (; size > 0; size -= static_cast<int64_t>(slices->back().size())) {
      slices->push_back(std::span(piece).first(std::min<size_t>(piece.size(), size)));
    }
  };
  ForwardRequest head;
  std::vector<Spans> raw;

  const std::string gibibyte = RawFieldHeader(1 << 30);
  Slices slices;
  for (int i = 0; i < 3; ++i) append(gibibyte, 1 << 30, &slices);
  ASSERT_TRUE(SplitMessage(slices, &head, &raw).ok());
  ASSERT_EQ(raw.size(), 3u);
  for (const Spans& payload : raw) EXPECT_EQ(SizeOf(payload), 1 << 30);

  // The longest single payload that protobuf reads, and one byte more.
  constexpr int64_t kLongest = (int64_t{1} << 31) - 17;
  const std::string longest = RawFieldHeader(kLongest);
  slices.clear();
  append(longest, kLongest, &slices);
  EXPECT_TRUE(SplitMessage(slices, &head, &raw).ok());
  const std::string too_long = absl::StrCat(Tag(15, 2), Varint(kLongest + 1));
  slices.clear();
  append(too_long, kLongest + 1, &slices);
  EXPECT_FALSE(SplitMessage(slices, &head, &raw).ok());
}

TEST_F(CodecTest, MessagesWithoutRawAreAllHead) {
  const std::string bytes = LengthField(15, "not a payload here");
  attn::v1::ServerInfoRequest head;
  std::vector<Spans> raw;
  ASSERT_TRUE(SplitMessage(Slices{Bytes(bytes)}, &head, &raw).ok());
  EXPECT_TRUE(raw.empty());
  EXPECT_EQ(head.SerializeAsString(), bytes);
}

TEST_F(CodecTest, RawFieldHeaderIsWhatProtobufWrites) {
  for (int64_t size : {0, 1, 127, 128, 16383, 16384, 1 << 21}) {
    attn::v1::ForwardReply reply;
    reply.add_raw(std::string(size, 'x'));
    EXPECT_EQ(RawFieldHeader(size) + reply.raw(0), reply.SerializeAsString());
  }
  EXPECT_EQ(RawFieldHeader((int64_t{1} << 31) - 17), "\x7a\xef\xff\xff\xff\x07");
}

}  // namespace
}  // namespace attnd
