// The server put together from its parts: start, serve, drain.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/batcher.h"
#include "server/config.h"
#include "server/health.h"
#include "server/http.h"
#include "server/lane.h"
#include "server/metrics.h"
#include "server/service.h"
#include "server/tensor_call.h"
#include "server/transport.h"

namespace attnd {

// Drain once before the destructor. Not thread safe.
class App {
 public:
  // Listens and serves when it returns. Signals that the process waits for are blocked by then, or
  // a thread of gRPC takes them.
  static absl::StatusOr<std::unique_ptr<App>> Start(const Config& config);
  ~App();

  // Refuses new work, finishes what is in flight (or cancels it after the drain timeout) and ends
  // every thread of the service. Blocks.
  void Drain();

  // Gives memory that is free back to the system once nothing has happened since the last call.
  // While requests come it is kept: fresh pages cost more than the copy into them.
  void TrimIfIdle();

 private:
  explicit App(const Config& config);
  absl::Status Build();
  absl::Status Listen();
  Metrics::Memory Memory() const;
  void LogStart() const;

  const Config config_;
  int64_t budget_bytes_ = 0;
  SteadyClock clock_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<Lane> lane_;
  TensorContext tensors_;
  Health health_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<HttpServer> http_;
  int64_t calls_seen_ = 0;
  int64_t idle_checks_ = 0;  // since the last call
};

}  // namespace attnd
