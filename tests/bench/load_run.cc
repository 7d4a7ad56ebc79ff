#include "tests/bench/load_run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/core/status.h"

namespace attnd::bench {
namespace {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// Numbers between -1 and 1 of any dtype, so that no method overflows.
std::vector<std::byte> RandomElements(client::DType::Value dtype, int64_t count,
                                      std::mt19937_64* random) {
  const int64_t size = client::ElementBytes(dtype);
  std::vector<std::byte> elements(count * size);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    if (dtype == client::DType::float16) {
      // Sign, an exponent that makes 1/4 to 1/2, and a random mantissa.
      bits = static_cast<uint32_t>((*random)() & 0x83ff) | 0x3400;
    } else {
      const float value = uniform(*random);
      std::memcpy(&bits, &value, 4);
      if (dtype == client::DType::bfloat16) bits >>= 16;
    }
    std::memcpy(elements.data() + i * size, &bits, size);
  }
  return elements;
}

// One method and length of the mix.
struct Kind {
  client::Request request;
  int64_t tokens = 0, bytes = 0;
  double weight = 0;
  std::vector<std::pair<std::string, std::vector<std::byte>>> expected;  // of --check
};

bool IsExpected(const Kind& kind, const client::Reply& reply) {
  for (const auto& [name, bytes] : kind.expected) {
    const client::ReplyTensor* tensor = reply.Find(name);
    if (tensor == nullptr || tensor->ToVector<std::byte>() != bytes) return false;
  }
  return true;
}

class Load {
 public:
  explicit Load(const LoadOptions& options) : options_(options), random_(options.seed) {}

  absl::Status Prepare();
  LoadReport Run();

 private:
  void AddKind(const MethodShare& method, const LengthShare& length);
  absl::Status Expect(Kind* kind);
  void RunOpen();
  void Issue(TimePoint scheduled);
  absl::Status Send(int64_t number, const Kind& kind, client::Callback done);
  void Count(const Kind& kind, TimePoint scheduled, const absl::StatusOr<client::Reply>& reply);
  void Leave();

  const LoadOptions options_;
  std::vector<std::byte> elements_[4];  // q, k, v, grad_out of the longest kind
  std::vector<Kind> kinds_;
  std::discrete_distribution<int> mix_;
  TimePoint end_;

  Mutex mu_;
  CondVar none_open_;
  std::mt19937_64 random_ ATTND_GUARDED_BY(mu_);
  int64_t open_ ATTND_GUARDED_BY(mu_) = 0;
  TimePoint last_ ATTND_GUARDED_BY(mu_);
  LoadReport report_ ATTND_GUARDED_BY(mu_);

  // Last: their callbacks use the members above.
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::unique_ptr<client::Pipeline>> pipelines_;
};

absl::Status Load::Prepare() {
  const auto longest = std::max_element(options_.lengths.begin(), options_.lengths.end(),
                                        [](const auto& a, const auto& b) { return a.N < b.N; });
  for (auto& elements : elements_) {
    elements = RandomElements(options_.dtype, longest->N * options_.heads * options_.dim, &random_);
  }
  for (const MethodShare& method : options_.methods) {
    for (const LengthShare& length : options_.lengths) AddKind(method, length);
  }
  std::vector<double> weights;
  for (const Kind& kind : kinds_) weights.push_back(kind.weight);
  mix_ = std::discrete_distribution<int>(weights.begin(), weights.end());

  for (int i = 0; i < options_.connections; ++i) {
    auto client = client::Client::Create({.target = options_.target,
                                          .timeout = std::nullopt,
                                          .max_attempts = options_.max_attempts,
                                          .spin_us = options_.spin_us});
    if (!client.ok()) return client.status();
    // Connects first, so that no request's latency includes it.
    const auto info = (*client)->ServerInfo({.timeout = std::chrono::seconds(10)});
    if (!info.ok()) return info.status();
    clients_.push_back(*std::move(client));
  }
  for (Kind& kind : kinds_) {
    if (options_.checks) ATTND_RETURN_IF_ERROR(Expect(&kind));
  }
  for (auto& client : clients_) {
    // The open loop must not wait.
    const int most = options_.rate.has_value() ? 1 << 30 : options_.concurrency;
    if (options_.uses_pipeline) pipelines_.push_back(client->OpenPipeline({.max_in_flight = most}));
  }
  return absl::OkStatus();
}

void Load::AddKind(const MethodShare& method, const LengthShare& length) {
  Kind kind;
  kind.request.method = method.method;
  kind.tokens = length.N;
  kind.weight = method.weight * length.weight;
  const char* names[] = {"q", "k", "v", "grad_out"};
  const int tensors = options_.direction == client::Direction::kForward ? 3 : 4;
  for (int i = 0; i < tensors; ++i) {
    kind.request.tensors.push_back({.name = names[i],
                                    .shape = {1, options_.heads, length.N, options_.dim},
                                    .data = elements_[i].data(),
                                    .dtype = options_.dtype});
    kind.bytes += options_.heads * length.N * options_.dim * client::ElementBytes(options_.dtype);
  }
  kinds_.push_back(std::move(kind));
}

absl::Status Load::Expect(Kind* kind) {
  client::Client& client = *clients_[0];
  const auto reply = options_.direction == client::Direction::kForward
                         ? client.Forward(kind->request)
                         : client.Backward(kind->request);
  if (!reply.ok()) return reply.status();
  for (const client::ReplyTensor& tensor : reply->tensors()) {
    kind->expected.emplace_back(tensor.name, tensor.ToVector<std::byte>());
  }
  return absl::OkStatus();
}

LoadReport Load::Run() {
  const TimePoint start = Clock::now();
  end_ = start + std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<double>(options_.duration_seconds));
  if (options_.rate.has_value()) {
    RunOpen();
  } else {
    for (int i = 0; i < options_.concurrency; ++i) Issue(Clock::now());
  }
  const MutexLock lock(&mu_);
  while (open_ > 0) none_open_.Wait(&mu_);
  report_.seconds = std::chrono::duration<double>(last_ - start).count();
  return report_;
}

void Load::RunOpen() {
  std::mt19937_64 random(options_.seed + 1);
  std::exponential_distribution<double> gap(*options_.rate);
  const double even = 1 / *options_.rate;
  // A request that is late leaves at once; its latency counts from when it should have left.
  for (TimePoint next = Clock::now(); next < end_;
       next += std::chrono::duration_cast<Clock::duration>(
           std::chrono::duration<double>(options_.is_poisson ? gap(random) : even))) {
    std::this_thread::sleep_until(next);
    Issue(next);
  }
}

void Load::Issue(TimePoint scheduled) {
  int64_t number = 0;
  const Kind* kind = nullptr;
  {
    const MutexLock lock(&mu_);
    kind = &kinds_[mix_(random_)];
    number = report_.requests++;
    ++open_;
  }
  const auto done = [this, kind, scheduled](const absl::StatusOr<client::Reply>& reply) {
    Count(*kind, scheduled, reply);
    // A closed loop sends its next request before this one counts as ended, so that the end is seen
    // once.
    const TimePoint now = Clock::now();
    if (!options_.rate.has_value() && now < end_) Issue(now);
    Leave();
  };
  // The stream has ended: nothing more can be sent on it.
  if (const absl::Status status = Send(number, *kind, done); !status.ok()) {
    Count(*kind, scheduled, status);
    Leave();
  }
}

absl::Status Load::Send(int64_t number, const Kind& kind, client::Callback done) {
  const size_t connection = number % clients_.size();
  if (options_.uses_pipeline) {
    return pipelines_[connection]->Submit(options_.direction, kind.request, std::move(done));
  }
  client::CallOptions call;
  if (options_.timeout_seconds > 0) {
    call.timeout = std::chrono::nanoseconds(static_cast<int64_t>(options_.timeout_seconds * 1e9));
  }
  client::Client& client = *clients_[connection];
  return (options_.direction == client::Direction::kForward
              ? client.ForwardAsync(kind.request, std::move(done), call)
              : client.BackwardAsync(kind.request, std::move(done), call))
      .status();
}

void Load::Count(const Kind& kind, TimePoint scheduled,
                 const absl::StatusOr<client::Reply>& reply) {
  const TimePoint now = Clock::now();
  const bool is_wrong = options_.checks && reply.ok() && !IsExpected(kind, *reply);
  const MutexLock lock(&mu_);
  last_ = now;
  if (!reply.ok()) {
    const std::string code = absl::StatusCodeToString(reply.status().code());
    ++report_.refused[code];
    report_.reasons.emplace(code, reply.status().message());
    return;
  }
  ++report_.ok;
  report_.mismatches += is_wrong;
  report_.tokens += kind.tokens;
  report_.sent_bytes += kind.bytes;
  for (const auto& tensor : reply->tensors()) report_.received_bytes += tensor.bytes();
  report_.latency.Add(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now - scheduled).count());
}

void Load::Leave() {
  const MutexLock lock(&mu_);
  if (--open_ == 0) none_open_.NotifyAll();
}

}  // namespace

absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options) {
  Load load(options);
  ATTND_RETURN_IF_ERROR(load.Prepare());
  return load.Run();
}

}  // namespace attnd::bench
