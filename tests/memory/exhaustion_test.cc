// An allocation that failed while a request was posted, pulled or batched ended the process. Here
// each one of a whole request fails in turn: that request is refused, the next is served.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "attn/v1/attention.pb.h"
#include "server/app.h"
#include "tests/memory/failing_new.h"
#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

constexpr char kForward[] = "/attn.v1.AttentionService/Forward";
constexpr char kRun[] = "/attn.v1.AttentionService/Run";

void AddTensors(attn::v1::ForwardRequest* request) {
  for (const char* name : {"q", "k", "v"}) {
    attn::v1::Tensor* tensor = request->add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(attn::v1::DType::float32);
    for (const int size : {1, 2, 8, 4}) tensor->add_shape(size);
    tensor->set_raw_index(static_cast<uint32_t>(request->tensors_size() - 1));
  }
}

class ExhaustionTest : public testing::Test {
 protected:
  static constexpr int kMostAllocations = 5000;

  ExhaustionTest() {
    ExemptThread();
    const std::string address = absl::StrCat("unix:", testing::TempDir(), "/attnd.", getpid());
    absl::StatusOr<std::unique_ptr<App>> app = App::Start({.grpc_addresses = {address},
                                                           .http_address = "127.0.0.1:0",
                                                           .threads = 1,
                                                           .budget_bytes = 64 << 20,
                                                           .log = {.level = "error"}});
    EXPECT_TRUE(app.ok()) << app.status();
    app_ = *std::move(app);
    client_ = std::make_unique<RpcClient>(address);
    AddTensors(&forward_);
    const std::string payload(2 * 8 * 4 * sizeof(float), '\0');
    for (int i = 0; i < 3; ++i) payloads_.add_raw(payload);
  }
  ~ExhaustionTest() override {
    FailAllocation(0);
    client_.reset();
    app_->Drain();
  }

  // No two are equal: a plan that is kept allocates nothing.
  attn::v1::ForwardRequest NewForward() {
    forward_.mutable_method()->mutable_local()->set_window_left(++windows_);
    return forward_;
  }

  grpc::Status Forward() {
    attn::v1::ForwardRequest request = NewForward();
    *request.mutable_raw() = payloads_.raw();
    std::string reply;
    return client_->Call(kForward, request.SerializeAsString(), &reply);
  }

  // The code of the answer if that is an error, else that of the stream.
  grpc::StatusCode Run() {
    attn::v1::RunRequest request;
    request.set_id("a");
    *request.mutable_forward() = NewForward();
    *request.mutable_raw() = payloads_.raw();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stream = client_->Open(kRun, &context);
    stream->Write(BytesOf(request.SerializeAsString()));
    grpc::ByteBuffer bytes;
    auto code = grpc::StatusCode::OK;
    if (stream->Read(&bytes)) {
      attn::v1::RunReply reply;
      EXPECT_TRUE(reply.ParseFromString(TextOf(bytes)));
      EXPECT_EQ(reply.id(), "a");
      code = static_cast<grpc::StatusCode>(reply.error().code());
    }
    stream->WritesDone();
    EXPECT_FALSE(stream->Read(&bytes)) << "a second answer";
    const grpc::StatusCode end = stream->Finish().error_code();
    return end == grpc::StatusCode::OK ? code : end;
  }

  // Lets each allocation of `call` fail in turn; returns how many refused it.
  template <class F>
  int Walk(const F& call) {
    int refused = 0;
    for (int n = 1; n < kMostAllocations; ++n) {
      FailAllocation(n);
      const grpc::StatusCode code = call();
      const bool has_failed = HasFailed();
      FailAllocation(0);
      EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::RESOURCE_EXHAUSTED)
          << "allocation " << n << ": " << code;
      refused += code == grpc::StatusCode::OK ? 0 : 1;
      EXPECT_EQ(call(), grpc::StatusCode::OK) << "the call after allocation " << n;
      if (!has_failed || HasFailure()) return refused;
    }
    ADD_FAILURE() << "a call without an end";
    return refused;
  }

  std::unique_ptr<App> app_;
  std::unique_ptr<RpcClient> client_;
  attn::v1::ForwardRequest forward_, payloads_;
  int windows_ = 0;
};

TEST_F(ExhaustionTest, EachAllocationOfAForward) {
  ASSERT_TRUE(Forward().ok()) << Forward().error_message();
  EXPECT_GT(Walk([this] { return Forward().error_code(); }), 20);
}

TEST_F(ExhaustionTest, EachAllocationOfARun) {
  ASSERT_EQ(Run(), grpc::StatusCode::OK);
  EXPECT_GT(Walk([this] { return Run(); }), 20);
}

}  // namespace
}  // namespace attnd
