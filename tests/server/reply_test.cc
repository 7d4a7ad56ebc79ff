#include "server/reply.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/method/registry.h"
#include "proto/wire/codec.h"

namespace attnd {
namespace {

namespace v1 = attn::v1;
using ::testing::ElementsAre;

const std::string kDevices[] = {"cpu"};

// The bytes on the wire: the head, then header and payload of each tensor.
template <class Reply>
Reply Receive(Direction direction, const std::vector<OutputInfo>& infos,
              const std::vector<std::string>& payloads) {
  v1::Stats stats;
  stats.set_device("cpu");
  std::string wire = EncodeReplyHead(direction, "id 7", infos, stats);
  for (const std::string& payload : payloads) {
    wire += RawFieldHeader(static_cast<int64_t>(payload.size())) + payload;
  }
  Reply reply;
  EXPECT_TRUE(reply.ParseFromString(wire));
  EXPECT_EQ(reply.id(), "id 7");
  EXPECT_EQ(reply.stats().device(), "cpu");
  EXPECT_THAT(reply.raw(), testing::ElementsAreArray(payloads));
  return reply;
}

TEST(ReplyTest, StockProtobufReadsHeadAndPayloads) {
  const auto reply = Receive<v1::ForwardReply>(
      Direction::kForward,
      {{.name = "out", .dtype = DType::kBF16, .layout = Layout::kBNHD, .shape = {1, 2, 3, 4}},
       {.name = "lse", .dtype = DType::kF32, .layout = Layout::kBNHD, .shape = {1, 2, 3}}},
      {std::string(48, 'o'), ""});
  ASSERT_EQ(reply.tensors_size(), 2);
  const v1::Tensor& out = reply.tensors(0);
  EXPECT_EQ(out.name(), "out");
  EXPECT_EQ(out.dtype(), v1::DType::bfloat16);
  EXPECT_EQ(out.layout(), v1::Layout::BNHD);
  EXPECT_THAT(out.shape(), ElementsAre(1, 3, 2, 4));
  EXPECT_EQ(out.raw_index(), 0u);
  const v1::Tensor& lse = reply.tensors(1);
  EXPECT_EQ(lse.layout(), v1::Layout::BHND);
  EXPECT_THAT(lse.shape(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(lse.has_raw_index());
  EXPECT_EQ(lse.raw_index(), 1u);
}

TEST(ReplyTest, GradientsTravelAlike) {
  const auto reply = Receive<v1::BackwardReply>(
      Direction::kBackward, {{.name = "k", .dtype = DType::kF16, .shape = {1, 1, 0, 4}}}, {""});
  EXPECT_EQ(reply.tensors(0).name(), "k");
  EXPECT_EQ(reply.tensors(0).dtype(), v1::DType::float16);
  EXPECT_THAT(reply.tensors(0).shape(), ElementsAre(1, 1, 0, 4));
}

TEST(ReplyTest, ListsEveryMethodAsInItsTable) {
  const v1::ListMethodsReply reply = DescribeMethods(AllMethods(), kDevices);
  ASSERT_EQ(reply.methods_size(), static_cast<int>(AllMethods().size()));
  for (int i = 0; i < reply.methods_size(); ++i) {
    const v1::MethodInfo& method = reply.methods(i);
    const MethodInfo& info = AllMethods()[i]->info();
    EXPECT_EQ(method.id(), info.id);
    EXPECT_EQ(method.summary(), info.summary);
    EXPECT_EQ(method.reference(), info.reference);
    EXPECT_EQ(method.cost(), info.cost);
    EXPECT_EQ(method.support().backward(), info.support.backward);
    EXPECT_EQ(method.support().gqa(), info.support.gqa);
    EXPECT_THAT(method.support().dtypes(), ElementsAre("float32", "float16", "bfloat16"));
    EXPECT_THAT(method.support().devices(), ElementsAre("cpu"));
    ASSERT_EQ(method.inputs_size(), static_cast<int>(info.inputs.size()));
    ASSERT_EQ(method.outputs_size(), static_cast<int>(info.outputs.size()));
    ASSERT_GT(method.inputs_size(), 0);
    EXPECT_EQ(method.inputs(0).name(), info.inputs[0].name);
    EXPECT_EQ(method.inputs(0).required(), info.inputs[0].required);
    ASSERT_EQ(method.options_size(), static_cast<int>(info.options.size()));
    for (int j = 0; j < method.options_size(); ++j) {
      EXPECT_EQ(method.options(j).name(), info.options[j].name);
      EXPECT_EQ(method.options(j).type(), std::string(Name(info.options[j].type)));
      EXPECT_EQ(method.options(j).default_value(), info.options[j].default_text);
      EXPECT_EQ(method.options(j).range(), info.options[j].range);
      EXPECT_EQ(method.options(j).served(), info.options[j].served);
      EXPECT_THAT(method.options(j).enum_values(),
                  testing::ElementsAreArray(info.options[j].enum_values));
    }
  }
}

// What is legal and seldom meant reaches the caller.
TEST(ReplyTest, CarriesNotesInBothDirectionsAndEstimates) {
  const std::string notes[] = {"local: look_backward has no effect unless granularity is block",
                               "local: another"};
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    // Notes have one field number in both replies.
    v1::ForwardReply reply;
    ASSERT_TRUE(reply.ParseFromString(EncodeReplyHead(direction, "id", {}, v1::Stats(), notes)));
    EXPECT_THAT(reply.notes(), testing::ElementsAreArray(notes));
  }
  Plan plan;
  plan.notes = {notes[0], notes[1]};
  EXPECT_THAT(DescribePlan(plan, "cpu").notes(), testing::ElementsAreArray(notes));
}

TEST(ReplyTest, DescribesAPlan) {
  Plan plan;
  plan.seconds = 0.5;
  plan.flops = 1e9;
  plan.visible_pairs = 35;
  plan.workspace_bytes = 4096;
  plan.input_bytes = 3;
  plan.output_bytes = 2;
  const v1::EstimateReply reply = DescribePlan(plan, "cpu");
  EXPECT_EQ(reply.seconds(), 0.5);
  EXPECT_EQ(reply.flops(), 1e9);
  EXPECT_EQ(reply.visible_pairs(), 35);
  EXPECT_EQ(reply.workspace_bytes(), 4096);
  EXPECT_EQ(reply.input_bytes(), 3);
  EXPECT_EQ(reply.output_bytes(), 2);
  EXPECT_EQ(reply.device(), "cpu");
}

TEST(ReplyTest, DescribesTheServer) {
  const v1::ServerInfoReply reply = DescribeServer({
      .version = "1.2.3",
      .uptime_seconds = 2.5,
      .devices = {{.name = "cpu",
                   .description = "AVX2, 2 threads",
                   .peak_flops = 1e11,
                   .bytes_per_second = 1e10},
                  {.name = "cuda:0"}},
      .self_tests = {{},
                     {.rows = {{.primitive = "scan",
                                .dtype = "float16",
                                .launches = 3,
                                .worst_error = 0.5,
                                .failure = "differs"},
                               {.primitive = "pool", .is_declined = true}},
                      .seconds = 1.5}},
      .note = "cuda:1 is missing",
      .max_message_bytes = 1 << 30,
      .budget_bytes = 77,
      .max_queue_requests = 9,
  });
  EXPECT_EQ(reply.version(), "1.2.3");
  EXPECT_EQ(reply.uptime_seconds(), 2.5);
  EXPECT_EQ(reply.note(), "cuda:1 is missing");
  ASSERT_EQ(reply.devices_size(), 2);
  EXPECT_EQ(reply.devices(0).name(), "cpu");
  EXPECT_EQ(reply.devices(0).description(), "AVX2, 2 threads");
  EXPECT_EQ(reply.devices(0).peak_flops(), 1e11);
  EXPECT_EQ(reply.devices(0).bytes_per_second(), 1e10);
  EXPECT_EQ(reply.devices(0).self_tests_size(), 0);
  ASSERT_EQ(reply.devices(1).self_tests_size(), 2);
  EXPECT_EQ(reply.devices(1).self_test_seconds(), 1.5);
  const v1::SelfTest& scan = reply.devices(1).self_tests(0);
  EXPECT_EQ(scan.primitive(), "scan");
  EXPECT_EQ(scan.dtype(), "float16");
  EXPECT_EQ(scan.launches(), 3);
  EXPECT_EQ(scan.worst_error(), 0.5);
  EXPECT_EQ(scan.failure(), "differs");
  EXPECT_FALSE(scan.declined());
  EXPECT_TRUE(reply.devices(1).self_tests(1).declined());
  EXPECT_EQ(reply.max_message_bytes(), 1 << 30);
  EXPECT_EQ(reply.budget_bytes(), 77);
  EXPECT_EQ(reply.max_queue_requests(), 9);
}

}  // namespace
}  // namespace attnd
