// AttentionService.Run: many requests on one stream.
#pragma once

#include <memory>
#include <set>

#include "server/tensor_context.h"
#include "server/transport.h"

namespace attnd {

// The streams that are open. Polling thread only.
class Runs {
 public:
  // REQUIRES: SetTransport before the first stream arrives.
  explicit Runs(TensorContext* context) : context_(context) {}
  void SetTransport(Transport* transport) { transport_ = transport; }

  std::unique_ptr<Handler> NewCall();

  // Ends each stream with UNAVAILABLE once its requests are answered.
  void Drain();

 private:
  class RunCall;

  TensorContext* const context_;
  Transport* transport_ = nullptr;
  std::set<RunCall*> calls_;
  bool is_draining_ = false;
};

}  // namespace attnd
