// Memory that gRPC may still be sending from after a call ended early.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "message.h"
#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"
#include "unary_call.h"

namespace attnd::client {
namespace {

// gRPC keeps a request a moment longer at times, and whenever a deadline interrupts a write.
TEST(Lent, ACallEndsOnceGrpcLetGoOfItsMemory) {
  FakeServer server(EchoUnary);
  const auto q = Values(100'000);
  auto message = EncodeRequest(Direction::kForward, RequestOf(q));
  ASSERT_TRUE(message.ok());
  grpc::ByteBuffer held_by_grpc = message->bytes;
  grpc::GenericStub stub(grpc::CreateChannel(server.target(), grpc::InsecureChannelCredentials()));
  bool has_ended = false;
  UnaryCall call(std::make_unique<grpc::ClientContext>(), message->loan,
                 [&](UnaryCall&) { has_ended = true; });
  EventQueue events(std::chrono::microseconds(0));
  call.Start(&stub, "/attn.v1.AttentionService/Forward", message->bytes, &events);
  message->bytes.Clear();
  // The first event is the answer; later ones check whether the loan has returned.
  for (int i = 0; i < 20; ++i) {
    events.Next();
    EXPECT_FALSE(has_ended);
  }
  EXPECT_TRUE(call.status().ok());
  held_by_grpc.Clear();
  events.Next();
  EXPECT_TRUE(has_ended);
}

// The address sanitizer checks what sendmsg is given, so it reports a late write.
TEST(Lent, DeadlinesAtAnyPointOfAnUpload) {
  FakeServer server([](grpc::ServerContext* context, const std::string&, std::string*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  });
  const auto client = MustCreate({.target = server.target(), .max_attempts = 1});
  for (const int milliseconds : {1, 4, 16, 64}) {
    const CallOptions options = {.timeout = std::chrono::milliseconds(milliseconds)};
    auto q = std::make_unique<std::vector<float>>(24 << 20);  // 96 MB
    EXPECT_TRUE(absl::IsDeadlineExceeded(client->Forward(RequestOf(*q), options).status()));
    std::memset(q->data(), 0xff, q->size() * sizeof(float));
  }
}

}  // namespace
}  // namespace attnd::client
