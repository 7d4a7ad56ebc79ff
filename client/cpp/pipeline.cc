#include "attnd/pipeline.h"

#include <utility>

#include "run_stream.h"

namespace attnd::client {

Pipeline::Pipeline(std::shared_ptr<RunStream> stream) : stream_(std::move(stream)) {}

Pipeline::~Pipeline() {
  stream_->Cancel();
  // What the stream ended with has been told to Close's callers and to each callback.
  (void)stream_->Close();
}

absl::Status Pipeline::Submit(Direction direction, const Request& request, Callback done) {
  return stream_->Submit(direction, request, std::move(done));
}

absl::Status Pipeline::Close() { return stream_->Close(); }
void Pipeline::Cancel() { stream_->Cancel(); }

}  // namespace attnd::client
