#include "server/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "server/reasons.h"
#include "server/refusals.h"

namespace attnd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ExtensionNumberResponse;
using grpc::reflection::v1::ExtensionRequest;
using grpc::reflection::v1::FileDescriptorResponse;
using grpc::reflection::v1::ListServiceResponse;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

absl::Status NotFound(absl::string_view rule, const std::string& got) {
  return absl::NotFoundError(absl::StrCat("reflection: ", rule, ", got ", got));
}

void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>* added,
             FileDescriptorResponse* response) {
  if (!added->insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AddFile(file->dependency(i), added, response);
  }
}

// Adds `file`, which may be null, and all its imports, as gRPC's own service does: clients rely on
// that.
absl::Status AddClosure(const FileDescriptor* file, absl::string_view rule, const std::string& got,
                        ServerReflectionResponse* response) {
  if (file == nullptr) return NotFound(rule, got);
  std::set<const FileDescriptor*> added;
  AddFile(file, &added, response->mutable_file_descriptor_response());
  return absl::OkStatus();
}

absl::Status AddExtension(const ExtensionRequest& request, ServerReflectionResponse* response) {
  const DescriptorPool* const pool = DescriptorPool::generated_pool();
  const Descriptor* const type = pool->FindMessageTypeByName(request.containing_type());
  if (type == nullptr) {
    return NotFound("containing_type must be a message of this server",
                    Quoted(request.containing_type()));
  }
  const FieldDescriptor* const extension =
      pool->FindExtensionByNumber(type, request.extension_number());
  return AddClosure(extension == nullptr ? nullptr : extension->file(),
                    absl::StrCat("extension_number must be an extension of ", type->full_name()),
                    absl::StrCat(request.extension_number()), response);
}

absl::Status AddExtensionNumbers(const std::string& name, ServerReflectionResponse* response) {
  const DescriptorPool* const pool = DescriptorPool::generated_pool();
  const Descriptor* const type = pool->FindMessageTypeByName(name);
  if (type == nullptr) {
    return NotFound("all_extension_numbers_of_type must be a message of this server", Quoted(name));
  }
  std::vector<const FieldDescriptor*> extensions;
  pool->FindAllExtensions(type, &extensions);
  ExtensionNumberResponse* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(name);
  for (const FieldDescriptor* extension : extensions) {
    numbers->add_extension_number(extension->number());
  }
  return absl::OkStatus();
}

absl::Status AddServices(const std::vector<std::string>& services,
                         ServerReflectionResponse* response) {
  ListServiceResponse* const list = response->mutable_list_services_response();
  for (const std::string& service : services) list->add_service()->set_name(service);
  return absl::OkStatus();
}

absl::Status Find(const ServerReflectionRequest& request, const std::vector<std::string>& services,
                  ServerReflectionResponse* response) {
  const DescriptorPool* const pool = DescriptorPool::generated_pool();
  const std::string& file = request.file_by_filename();
  const std::string& symbol = request.file_containing_symbol();
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      return AddServices(services, response);
    case ServerReflectionRequest::kFileByFilename:
      return AddClosure(pool->FindFileByName(file),
                        "file_by_filename must be a file of this server", Quoted(file), response);
    case ServerReflectionRequest::kFileContainingSymbol:
      return AddClosure(pool->FindFileContainingSymbol(symbol),
                        "file_containing_symbol must be a symbol of this server", Quoted(symbol),
                        response);
    case ServerReflectionRequest::kFileContainingExtension:
      return AddExtension(request.file_containing_extension(), response);
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      return AddExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  return absl::UnimplementedError(
      "reflection: message_request must be one of grpc.reflection.v1, got none");
}

absl::Status ParseRequest(const grpc::ByteBuffer& message, ServerReflectionRequest* request) {
  // Bounded, since the response repeats the request and is held until the client reads it.
  if (message.Length() > kMaxHeadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: size must be <= ", kMaxHeadBytes, ", got ", message.Length()));
  }
  return Parse(message, request);
}

ServerReflectionResponse Answer(const grpc::ByteBuffer& message,
                                const std::vector<std::string>& services) {
  ServerReflectionRequest request;
  ServerReflectionResponse response;
  absl::Status status = ParseRequest(message, &request);
  if (status.ok()) {
    status = Find(request, services, &response);
    response.set_valid_host(request.host());
    *response.mutable_original_request() = std::move(request);
  }
  if (!status.ok()) {
    response.mutable_error_response()->set_error_code(status.raw_code());
    response.mutable_error_response()->set_error_message(std::string(status.message()));
  }
  return response;
}

}  // namespace

class Reflection::Stream final : public Handler {
 public:
  explicit Stream(Reflection* reflection) : reflection_(reflection) {}

  void OnHeaders(Rpc& rpc) override {
    rpc_ = &rpc;
    if (reflection_->closed_) return Close();
    reflection_->streams_.insert(this);
    rpc.ReadUnannounced();
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Close(absl::OkStatus());
    rpc.Send(Serialize(Answer(*message, reflection_->services_)));
  }
  void OnSent(Rpc& rpc) override { rpc.ReadUnannounced(); }
  void OnDone(Rpc& rpc, bool) override {
    reflection_->streams_.erase(this);
    rpc.Close(absl::CancelledError("reflection: the caller left"));
  }

  void Close() { rpc_->Close(StreamDrainingStatus()); }

 private:
  Reflection* const reflection_;
  Rpc* rpc_ = nullptr;
};

Reflection::Reflection(std::vector<std::string> services) : services_(std::move(services)) {
  // No code uses them, and clients of the older version ask for their descriptors.
  google::protobuf::LinkMessageReflection<grpc::reflection::v1alpha::ServerReflectionRequest>();
}

void Reflection::AddMethods(MethodTable* table) {
  for (const char* service : kReflectionServices) {
    (*table)[absl::StrCat("/", service, "/ServerReflectionInfo")] = [this] {
      return std::make_unique<Stream>(this);
    };
  }
}

void Reflection::CloseStreams() {
  closed_ = true;
  // Close only starts an operation: no stream is removed from the set during the loop.
  for (Stream* stream : streams_) stream->Close();
}

}  // namespace attnd
