// Many requests on one stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/reply.h"
#include "attnd/request.h"

namespace attnd::client {

class RunStream;

using Callback = std::function<void(absl::StatusOr<Reply>)>;

enum class Direction { kForward, kBackward };

struct PipelineOptions {
  // Requests that are unanswered at a time. >= 1.
  int max_in_flight = 64;
  // Of each request, from its Submit on. None: the client's.
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
};

// The stream `Run` of a client. Requests leave in the order they are submitted and are answered as
// they complete. One that the server refuses for lack of room is sent again by the rules of
// ClientOptions. When the stream fails, all unanswered requests end with its status. A request past
// its deadline ends with DEADLINE_EXCEEDED, and counts as unanswered until the server answers it; a
// single request cannot be cancelled. Thread safe.
//
// Compared with single calls it saves the cost of a call for each request, which matters for small
// ones.
class Pipeline {
 public:
  explicit Pipeline(std::shared_ptr<RunStream> stream);
  // Ends unanswered requests with CANCELLED and waits for their callbacks. REQUIRES: no callback
  // calls this.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Waits while max_in_flight requests are unanswered; in a callback of the client it never waits,
  // as the request that was answered made room, and the request may leave only once the callback
  // has returned. If this succeeds, `done` runs exactly once, on the client's thread; else never.
  // The memory of the tensors: see Tensor. Errors: INVALID_ARGUMENT for the request,
  // DEADLINE_EXCEEDED where there was no room in time, FAILED_PRECONDITION after Close, else the
  // status of the stream.
  [[nodiscard]] absl::Status Submit(Direction direction, const Request& request, Callback done);

  // Ends the stream and waits until everything is answered or late. REQUIRES: this is no callback.
  // Answers the status of the stream; refused requests do not count. Idempotent.
  absl::Status Close();

  // Ends unanswered requests with CANCELLED.
  void Cancel();

 private:
  const std::shared_ptr<RunStream> stream_;
};

}  // namespace attnd::client
