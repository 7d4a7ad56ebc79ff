#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "proto/wire/scratch.h"
#include "server/reply.h"
#include "server/transport.h"
#include "tests/bench/transport.d/echo_server.h"
#include "tests/bench/transport.d/load.h"

namespace attnd::bench {
namespace {

using attn::v1::ForwardRequest;

// The benchmark sets no limits.
constexpr int64_t kLargestMessage = int64_t{1} << 30;

std::string ReplyHead(const ForwardRequest& request, double gather_seconds) {
  OutputInfo out{.name = "out"};
  for (int64_t size : request.tensors(0).shape()) out.shape.dims[out.shape.rank++] = size;
  attn::v1::Stats stats;
  stats.set_gather_seconds(gather_seconds);
  stats.set_batch_requests(1);
  stats.set_device("cpu");
  return EncodeReplyHead(Direction::kForward, request.id(), {&out, 1}, stats);
}

class EchoCall : public Handler {
 public:
  void OnHeaders(Rpc& rpc) override {
    rpc.Expect(kLargestMessage);
    rpc.Read();
  }

  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Finish(absl::InvalidArgumentError("no message"));
    Received received;
    Scratch<ForwardRequest> request;
    std::vector<Spans> raw;
    absl::Status status = Receive(*message, &received);
    if (status.ok()) status = SplitMessage(received.pieces, request.get(), &raw);
    if (status.ok() && (request->tensors_size() != 3 || raw.size() != 3)) {
      status = absl::InvalidArgumentError("q, k and v are required");
    }
    if (!status.ok()) return rpc.Finish(status);
    rpc.Reply(Answer(*request, raw, std::move(received)));
  }

 private:
  virtual grpc::ByteBuffer Answer(const ForwardRequest& request, const std::vector<Spans>& raw,
                                  Received received) = 0;
};

class InPlaceCall final : public EchoCall {
  grpc::ByteBuffer Answer(const ForwardRequest& request, const std::vector<Spans>& raw,
                          Received received) override {
    const Spans& q = raw[0];
    std::vector<grpc::Slice> slices;
    slices.emplace_back(ReplyHead(request, /*gather_seconds=*/0) + RawFieldHeader(SizeOf(q)));
    for (const auto& span : q) {
      slices.push_back(Wrap(span.data(), span.size(), received.owner));
    }
    return grpc::ByteBuffer(slices.data(), slices.size());
  }
};

// Copies payloads into flat memory as a lane does. Not thread safe.
class Gatherer {
 public:
  Gatherer() {
    auto device = NewCpuDevice({});
    if (!device.ok()) Die(device.status().ToString());
    device_ = *std::move(device);
    stream_.emplace(*device_, &device_->memory());
  }

  std::shared_ptr<Buffer> Gather(const Spans& spans) {
    std::shared_ptr<Buffer> flat = device_->memory().Allocate(SizeOf(spans));
    if (flat == nullptr) Die("no memory");
    const DeviceStatus status = device_->Upload(*stream_, flat->data(), spans, /*source=*/nullptr);
    if (!status.ok()) Die(status.text());
    return flat;
  }

 private:
  std::unique_ptr<Device> device_;
  std::optional<Stream> stream_;
};

// Every tensor in flat memory; `out` is the first.
struct Gathered {
  Gathered(const std::vector<Spans>& raw, Gatherer* gatherer, Received received) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<Buffer>> flat;
    for (const Spans& spans : raw) flat.push_back(gatherer->Gather(spans));
    // Frees the received message before anything else takes memory.
    received = {};
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    out = {.data = flat[0]->data(), .bytes = static_cast<size_t>(SizeOf(raw[0])), .owner = flat[0]};
  }

  Payload out;
  double seconds = 0;
};

class GatherCall final : public EchoCall {
 public:
  explicit GatherCall(Gatherer* gatherer) : gatherer_(gatherer) {}

 private:
  grpc::ByteBuffer Answer(const ForwardRequest& request, const std::vector<Spans>& raw,
                          Received received) override {
    const Gathered gathered(raw, gatherer_, std::move(received));
    return Join(ReplyHead(request, gathered.seconds), {&gathered.out, 1});
  }

  Gatherer* const gatherer_;
};

// Answers every request of a stream as it comes, as GatherCall does; for requests that need no
// announcement.
class EchoRun final : public Handler {
 public:
  explicit EchoRun(Gatherer* gatherer) : gatherer_(gatherer) {}

  void OnHeaders(Rpc& rpc) override {
    rpc.Expect(kLargestMessage);
    rpc.Read();
  }

  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Close(absl::OkStatus());
    Received received;
    Scratch<attn::v1::RunRequest> request;
    std::vector<Spans> raw;
    absl::Status status = Receive(*message, &received);
    if (status.ok()) status = SplitMessage(received.pieces, request.get(), &raw);
    if (status.ok() && (request->forward().tensors_size() != 3 || raw.size() != 3)) {
      status = absl::InvalidArgumentError("q, k and v are required");
    }
    if (!status.ok()) return rpc.Close(status);
    const Gathered gathered(raw, gatherer_, std::move(received));
    const std::string reply = ReplyHead(request->forward(), gathered.seconds);
    rpc.Send(Join(EncodeRunHead(request->id(), Direction::kForward, reply), {&gathered.out, 1}));
    rpc.Expect(kLargestMessage);
    rpc.Read();
  }

  void OnDone(Rpc& rpc, bool) override { rpc.Close(absl::CancelledError("the caller left")); }

 private:
  Gatherer* const gatherer_;
};

class AttndServer final : public EchoServer {
 public:
  AttndServer(const ServerOptions& options, bool gathers) {
    MethodTable methods;
    methods["/attn.v1.AttentionService/Forward"] = [this, gathers]() -> std::unique_ptr<Handler> {
      if (gathers) return std::make_unique<GatherCall>(&gatherer_);
      return std::make_unique<InPlaceCall>();
    };
    methods["/attn.v1.AttentionService/Run"] = [this] {
      return std::make_unique<EchoRun>(&gatherer_);
    };
    auto transport = Transport::Start({.addresses = {"127.0.0.1:0"},
                                       .buffer_bytes = int64_t{8} << 30,
                                       .large_reads = options.large_reads,
                                       .spin = std::chrono::microseconds(options.spin_us)},
                                      std::move(methods));
    if (!transport.ok()) Die(transport.status().ToString());
    transport_ = *std::move(transport);
  }
  int port() const override { return transport_->port(); }

 private:
  Gatherer gatherer_;  // of the one thread that runs the handlers
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<EchoServer> NewInPlaceServer(const ServerOptions& options) {
  return std::make_unique<AttndServer>(options, /*gathers=*/false);
}
std::unique_ptr<EchoServer> NewGatherServer(const ServerOptions& options) {
  return std::make_unique<AttndServer>(options, /*gathers=*/true);
}

}  // namespace attnd::bench
