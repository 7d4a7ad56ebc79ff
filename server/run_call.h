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
  // The transport that the streams arrive on is given before the first of them.
  explicit Runs(TensorContext* context) : context_(context) {}
  void SetTransport(Transport* transport) { transport_ = transport; }

  std::unique_ptr<Handler> NewCall();

  // Ends each stream with UNAVAILABLE once what it brought is answered.
  void Drain();

 private:
  class RunCall;

  TensorContext* const context_;
  Transport* transport_ = nullptr;
  std::set<RunCall*> calls_;
  bool is_draining_ = false;
};

}  // namespace attnd
