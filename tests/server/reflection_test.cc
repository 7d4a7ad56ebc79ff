// Reflection over a real connection: what tools find, errors, and how streams end.
#include "server/reflection.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attn/v1/attention.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "proto/wire/codec.h"
#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

constexpr char kMethod[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr auto kNow = std::chrono::milliseconds(0);

Request Symbol(const std::string& name) {
  Request request;
  request.set_file_containing_symbol(name);
  return request;
}

Request File(const std::string& name) {
  Request request;
  request.set_file_by_filename(name);
  return request;
}

Request Extension(const std::string& type, int number) {
  Request request;
  request.mutable_file_containing_extension()->set_containing_type(type);
  request.mutable_file_containing_extension()->set_extension_number(number);
  return request;
}

Request ExtensionNumbers(const std::string& type) {
  Request request;
  request.set_all_extension_numbers_of_type(type);
  return request;
}

std::vector<std::string> FilesOf(const Response& response) {
  std::vector<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    names.push_back(file.ParseFromString(bytes) ? file.name() : "not a file");
  }
  return names;
}

class ReflectionTest : public testing::Test {
 protected:
  void SetUp() override {
    // Links the descriptors of the service into the process.
    google::protobuf::LinkMessageReflection<attn::v1::ForwardRequest>();
    MethodTable methods;
    reflection_.AddMethods(&methods);
    auto transport = Transport::Start({.addresses = {"127.0.0.1:0"}}, std::move(methods));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    client_ = std::make_unique<RpcClient>(transport_->addresses().front());
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(100));
    stream_ = client_->Open(kMethod, &context_);
  }
  void TearDown() override {
    context_.TryCancel();
    transport_.reset();
  }

  // The response to `bytes` on the stream of the fixture.
  Response AskBytes(const std::string& bytes) {
    Response response;
    grpc::ByteBuffer message;
    EXPECT_TRUE(stream_->Write(BytesOf(bytes)));
    EXPECT_TRUE(stream_->Read(&message));
    EXPECT_TRUE(response.ParseFromString(TextOf(message)));
    return response;
  }
  Response Ask(const Request& request) {
    Response response = AskBytes(request.SerializeAsString());
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }
  // "5 reflection: ..."
  std::string ErrorOf(const Response& response) {
    EXPECT_TRUE(response.has_error_response());
    return absl::StrCat(response.error_response().error_code(), " ",
                        response.error_response().error_message());
  }

  Reflection reflection_{{"attn.v1.AttentionService", "another.Service"}};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<RpcClient> client_;
  grpc::ClientContext context_;
  std::unique_ptr<RpcClient::Stream> stream_;
};

TEST_F(ReflectionTest, ListsTheServicesItWasGiven) {
  Request request;
  request.set_host("somewhere");
  request.set_list_services("anything");
  const Response response = Ask(request);
  EXPECT_EQ(response.valid_host(), "somewhere");
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, ElementsAre("attn.v1.AttentionService", "another.Service"));
}

TEST_F(ReflectionTest, AFileComesWithAllItImportsEachOnce) {
  EXPECT_THAT(FilesOf(Ask(File("attn/v1/tensor.proto"))), ElementsAre("attn/v1/tensor.proto"));
  const std::vector<std::string> files = FilesOf(Ask(File("attn/v1/attention.proto")));
  ASSERT_THAT(files, UnorderedElementsAre("attn/v1/attention.proto", "attn/v1/methods.proto",
                                          "attn/v1/tensor.proto"));
  EXPECT_EQ(files.front(), "attn/v1/attention.proto");
}

TEST_F(ReflectionTest, FindsWhateverAFileDeclares) {
  for (const char* name :
       {"attn.v1.AttentionService", "attn.v1.AttentionService.Run", "attn.v1.ForwardRequest",
        "attn.v1.RunRequest.next_message_bytes", "attn.v1.RunRequest.content"}) {
    const std::vector<std::string> files = FilesOf(Ask(Symbol(name)));
    ASSERT_FALSE(files.empty()) << name;
    EXPECT_EQ(files.front(), "attn/v1/attention.proto") << name;
  }
  for (const char* name : {"attn.v1.DType.Value", "attn.v1.DType.float32"}) {
    EXPECT_THAT(FilesOf(Ask(Symbol(name))), ElementsAre("attn/v1/tensor.proto")) << name;
  }
  EXPECT_THAT(FilesOf(Ask(Symbol("grpc.reflection.v1alpha.ServerReflection"))),
              ElementsAre("grpc/reflection/v1alpha/reflection.proto"));
}

TEST_F(ReflectionTest, AFileIsTheOneThatWasCompiled) {
  const Response response = Ask(Symbol("attn.v1.AttentionService"));
  google::protobuf::FileDescriptorProto expected, found;
  attn::v1::ForwardRequest::descriptor()->file()->CopyTo(&expected);
  ASSERT_TRUE(found.ParseFromString(response.file_descriptor_response().file_descriptor_proto(0)));
  EXPECT_EQ(found.DebugString(), expected.DebugString());
}

TEST_F(ReflectionTest, AnswersWithErrorsForUnknownNamesAndGoesOn) {
  EXPECT_EQ(ErrorOf(Ask(File("attn/v1/nothing.proto"))),
            "5 reflection: file_by_filename must be a file of this server, got "
            "\"attn/v1/nothing.proto\"");
  EXPECT_EQ(ErrorOf(Ask(Symbol("attn.v1.Nothing"))),
            "5 reflection: file_containing_symbol must be a symbol of this server, got "
            "\"attn.v1.Nothing\"");
  for (const char* name :
       {"", ".", ".attn.v1.Tensor", "attn.v1.Tensor.", "attn..v1", " ", "\x01"}) {
    EXPECT_THAT(ErrorOf(Ask(Symbol(name))), HasSubstr("must be a symbol")) << name;
  }
  EXPECT_EQ(ErrorOf(Ask(Request())),
            "12 reflection: message_request must be one of grpc.reflection.v1, got none");
  EXPECT_THAT(FilesOf(Ask(Symbol("attn.v1.Tensor"))), ElementsAre("attn/v1/tensor.proto"));
}

TEST_F(ReflectionTest, ExtensionsOfMessages) {
  const Response none = Ask(ExtensionNumbers("attn.v1.Tensor"));
  EXPECT_EQ(none.all_extension_numbers_response().base_type_name(), "attn.v1.Tensor");
  EXPECT_THAT(none.all_extension_numbers_response().extension_number(), IsEmpty());
  EXPECT_EQ(ErrorOf(Ask(ExtensionNumbers("attn.v1.Nothing"))),
            "5 reflection: all_extension_numbers_of_type must be a message of this server, got "
            "\"attn.v1.Nothing\"");
  EXPECT_EQ(ErrorOf(Ask(Extension("attn.v1.Tensor", 100))),
            "5 reflection: extension_number must be an extension of attn.v1.Tensor, got 100");
  EXPECT_EQ(ErrorOf(Ask(Extension("attn.v1.Nothing", 1))),
            "5 reflection: containing_type must be a message of this server, got "
            "\"attn.v1.Nothing\"");
}

TEST_F(ReflectionTest, AnswersInvalidRequestsWithErrorsAndGoesOn) {
  EXPECT_THAT(ErrorOf(AskBytes("\x0a\x05x")), HasSubstr("3 message: "));
  // Not UTF-8.
  EXPECT_THAT(ErrorOf(AskBytes("\x22\x01\xff")), HasSubstr("3 message: "));
  const size_t limit = kMaxHeadBytes;
  EXPECT_EQ(ErrorOf(AskBytes(std::string(limit + 1, 'x'))),
            absl::StrCat("3 message: size must be <= ", limit, ", got ", limit + 1));
  EXPECT_THAT(FilesOf(Ask(Symbol("attn.v1.Tensor"))), ElementsAre("attn/v1/tensor.proto"));
}

TEST_F(ReflectionTest, EndsAfterItsClient) {
  Ask(Symbol("attn.v1.Tensor"));
  stream_->WritesDone();
  grpc::ByteBuffer message;
  EXPECT_FALSE(stream_->Read(&message));
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(ReflectionTest, AClientThatDoesNotReadIsNotReadEither) {
  Request request = Symbol("attn.v1.Tensor");
  request.set_host(std::string(32 << 10, 'x'));
  const std::string bytes = request.SerializeAsString();
  constexpr int kRequests = 3000;  // 94 MiB; windows may grow to 32
  std::atomic<int> written = 0;
  std::thread writer([&] {
    while (written < kRequests && stream_->Write(BytesOf(bytes))) ++written;
    stream_->WritesDone();
  });
  for (int before = -1; before != written;) {
    before = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_LT(written, kRequests / 2);

  int read = 0;
  for (grpc::ByteBuffer message; stream_->Read(&message);) ++read;
  writer.join();
  EXPECT_EQ(read, kRequests);
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(ReflectionTest, StreamsEndWithTheServer) {
  Ask(Symbol("attn.v1.Tensor"));
  transport_->Post([this] { reflection_.CloseStreams(); });
  grpc::ByteBuffer message;
  EXPECT_FALSE(stream_->Read(&message));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::UNAVAILABLE);

  grpc::ClientContext late_context;
  auto late = client_->Open(kMethod, &late_context);
  EXPECT_FALSE(late->Read(&message));
  EXPECT_EQ(late->Finish().error_message(), "server is draining");

  // A stream that stayed open would delay the stop for the whole 100 s.
  const auto started = std::chrono::steady_clock::now();
  transport_->StopServing(std::chrono::seconds(100));
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(50));
}

TEST_F(ReflectionTest, AStreamThatItsClientLeftIsForgotten) {
  Ask(Symbol("attn.v1.Tensor"));
  context_.TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::CANCELLED);
  // The stream may end before or after the posted call, which must not use it after its end.
  transport_->Post([this] { reflection_.CloseStreams(); });
  transport_->StopServing(kNow);
}

}  // namespace
}  // namespace attnd
