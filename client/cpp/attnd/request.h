// A request: a method, and tensors in the caller's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attn/v1/methods.pb.h"
#include "attn/v1/tensor.pb.h"

namespace attnd::client {

using attn::v1::DType;
using attn::v1::Layout;
using attn::v1::MethodSpec;

// A dense tensor in memory that is sent from where it lies: row-major, no padding. Payloads below
// 4 KiB are copied.
//
// The caller must not change the memory until the call has ended: until it returned, or its
// callback ran. With an `owner`, not while the owner lives; the client holds the owner until gRPC
// has released the memory. When a call ends early (deadline, cancellation, refusal), gRPC may still
// be writing; without an owner the end of the call waits for that. gRPC ends no call while it hands
// its bytes to the socket: a peer that stops reading its socket, as a stopped process does, delays
// a deadline until the connection is closed, 20 s at most.
struct Tensor {
  std::string name;            // "q", "k", "v", "kv_lengths", "grad_out", ...
  std::vector<int64_t> shape;  // as stored, at most 4 dimensions
  const void* data = nullptr;
  DType::Value dtype = DType::float32;
  Layout::Value layout = Layout::BHND;
  std::shared_ptr<const void> owner = nullptr;
};

// Tensors of the same memory (k and v, say) travel once.
struct Request {
  MethodSpec method;
  // Forward: q, k, v as the method needs them, and its other tensors. Backward: "grad_out" and
  // "grad_lse", too; at least one of them.
  std::vector<Tensor> tensors;
  std::string device = "";  // "cpu", "cuda:0" or empty: the server's choice
  // -100..100, higher runs first. Servers allow 0 at most, unless --max-priority is higher or the
  // request comes through a Unix socket.
  int priority = 0;
  // Of a backward. False: cuDNN may compute gradients of large attention sooner, by sums in any
  // order; equal requests may then get other bits.
  bool deterministic = true;
};

// A method in protobuf's text format: "softmax", "local{window_left:64 causal:true}".
// Errors: INVALID_ARGUMENT "request: method ...".
absl::StatusOr<MethodSpec> ParseMethod(absl::string_view text);

// Bytes of one element; 0 for `unspecified` and numbers that are no dtype.
int64_t ElementBytes(DType::Value dtype);

}  // namespace attnd::client
