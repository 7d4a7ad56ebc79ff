#include "proto/wire/bytes.h"

#include <stdlib.h>

#include <cstring>
#include <string>
#include <utility>

#include "proto/wire/codec.h"

namespace attnd {

absl::Status Receive(const grpc::ByteBuffer& message, Received* received) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return absl::InvalidArgumentError("message: cannot be read");
  received->bytes = static_cast<int64_t>(message.Length());
  if (received->bytes < kCopyBytes) {
    const std::shared_ptr<std::byte[]> copy =
        std::make_shared_for_overwrite<std::byte[]>(received->bytes + 1);
    size_t at = 0;
    for (const grpc::Slice& slice : slices) {
      std::memcpy(copy.get() + at, slice.begin(), slice.size());
      at += slice.size();
    }
    received->pieces.emplace_back(copy.get(), at);
    received->owner = copy;
    return absl::OkStatus();
  }
  received->pieces.reserve(slices.size());
  for (const grpc::Slice& slice : slices) {
    received->pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  received->owner = std::make_shared<std::vector<grpc::Slice>>(std::move(slices));
  return absl::OkStatus();
}

absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (bytes.Dump(&slices).ok()) {
    flat.reserve(bytes.Length());
    for (const grpc::Slice& slice : slices) {
      flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    if (message->ParseFromString(flat)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError("message: bytes must be a valid " + message->GetTypeName() +
                                    ", got a malformed field, or text that is not UTF-8");
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

void UseLargeReads() {
  // A value that the environment sets already stays.
  setenv("GRPC_EXPERIMENTS", "tcp_frame_size_tuning,-tcp_read_chunks", /*overwrite=*/0);
}

grpc::Slice Wrap(const void* data, size_t bytes, std::shared_ptr<void> owner) {
  if (bytes < kWrapBytes) return grpc::Slice(data, bytes);
  using Owner = std::shared_ptr<void>;
  return grpc::Slice(
      const_cast<void*>(data), bytes, [](void* held) { delete static_cast<Owner*>(held); },
      new Owner(std::move(owner)));
}

grpc::ByteBuffer Join(std::string head, std::span<const Payload> payloads) {
  std::vector<grpc::Slice> slices;
  for (const Payload& payload : payloads) {
    head += RawFieldHeader(static_cast<int64_t>(payload.bytes));
    if (payload.bytes < kWrapBytes) {
      head.append(static_cast<const char*>(payload.data), payload.bytes);
      continue;
    }
    slices.emplace_back(head);
    head.clear();
    slices.push_back(Wrap(payload.data, payload.bytes, payload.owner));
  }
  if (!head.empty()) slices.emplace_back(head);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace attnd
