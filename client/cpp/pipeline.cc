#include "attnd/pipeline.h"

#include <utility>

#include "run_stream.h"

namespace attnd::client {

Pipeline::Pipeline(std::shared_ptr<RunStream> stream) : stream_(std::move(stream)) {}

Pipeline::~Pipeline() {
  stream_->Cancel();
  // Close's callers and each callback have received the status that the stream ended with.
  (void)stream_->Close();
}

absl::Status Pipeline::Submit(Direction direction, const Request& request, Callback done) {
  return stream_->Submit(direction, request, std::move(done));
}

absl::Status Pipeline::Close() { return stream_->Close(); }
void Pipeline::Cancel() { stream_->Cancel(); }

}  // namespace attnd::client
