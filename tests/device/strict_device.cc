#include "tests/device/strict_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/device/device_copies.h"
#include "tests/device/arena.h"
#include "tests/device/late_queue.h"

namespace attnd::testing {
namespace {

class StrictMemory final : public MemorySource {
 public:
  StrictMemory(Arena* arena, int64_t most) : arena_(arena), most_(most) {}
  void* Allocate(int64_t bytes) override {
    const bool fits = taken_.fetch_add(bytes) + bytes <= most_ || most_ == 0;
    void* const data = fits ? arena_->Allocate(bytes) : nullptr;
    if (data == nullptr) taken_.fetch_sub(bytes);
    return data;
  }
  void Free(void* data, int64_t bytes) override {
    arena_->Free(data, bytes);
    taken_.fetch_sub(bytes);
  }
  void Fill(WorkQueue* queue, void* data, int64_t bytes, uint8_t value) override {
    const auto fill = [=] {
      std::memset(data, value, static_cast<size_t>(bytes));
      return DeviceStatus();
    };
    if (queue != nullptr) return static_cast<LateQueue*>(queue)->Add(fill);
    const Arena::Scope open(arena_);
    static_cast<void>(fill());
  }

 private:
  Arena* const arena_;
  const int64_t most_;
  std::atomic<int64_t> taken_ = 0;
};

class StrictDevice final : public Device {
 public:
  StrictDevice(std::unique_ptr<Device> cpu, const StrictOptions& options)
      : declined_(options.declined),
        fails_at_(options.fails_at),
        memory_(options.cpu.retain_bytes, options.cpu.poison_memory,
                std::make_unique<StrictMemory>(&arena_, options.most_bytes)),
        cpu_(std::move(cpu)),
        info_(cpu_->info()) {
    info_.has_host_memory = options.has_host_memory;
    info_.memory_bytes = options.memory_bytes;
    if (options.has_host_memory) open_.emplace(&arena_);
  }

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return memory_; }
  std::shared_ptr<WorkQueue> NewQueue() override { return std::make_shared<LateQueue>(&arena_); }
  int64_t launches() const override { return cpu_->launches(); }
  DeviceCounters counters() const override {
    return {.launches = launches(), .bytes_to_device = to_device_, .bytes_to_host = to_host_};
  }
  std::string failure() const override { return has_failed_ ? "a launch was made to fail" : ""; }

  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (declined_[launch.index()]) {
      return {DeviceStatus::Code::kDeclined, "strict: declined"};
    }
    if (stream.is_dry()) return cpu_->Run(stream, std::move(launch));
    if (stream.stopped()) return Stopped();
    bool is_inside = true;
    ForEachView(launch, [&](const View& view) { is_inside = is_inside && Holds(view); });
    if (!is_inside) return OtherMemory(absl::StrCat("launch ", launch.index()));
    UsePatternsOfMyOwn(stream, &launch);
    Add(stream, [this, control = stream.control(), launch = std::move(launch)]() mutable {
      if (++launched_ == fails_at_) {
        has_failed_ = true;
        return Failed();
      }
      Stream own(*cpu_, &cpu_->memory(), control);
      return cpu_->Run(own, std::move(launch));
    });
    return {};
  }

  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    if (stream.is_dry()) return cpu_->Upload(stream, destination, spans, nullptr);
    if (stream.stopped()) return Stopped();
    size_t bytes = 0;
    for (const auto& span : spans) bytes += span.size();
    if (!Holds(destination, bytes)) return OtherMemory("upload");
    std::vector<std::span<const std::byte>> pieces(spans.begin(), spans.end());
    Add(stream, [=, this, pieces = std::move(pieces), source = std::move(source)] {
      auto* to = static_cast<std::byte*>(destination);
      for (const auto& piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
      to_device_ += static_cast<int64_t>(bytes);
      return DeviceStatus();
    });
    return {};
  }

  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    if (stream.is_dry()) return cpu_->Download(stream, source, bytes);
    if (stream.stopped()) return Stopped();
    if (!Holds(source, bytes.size())) return OtherMemory("download");
    Add(stream, [=, this] {
      std::memcpy(bytes.data(), source, bytes.size());
      to_host_ += static_cast<int64_t>(bytes.size());
      return DeviceStatus();
    });
    return {};
  }

 private:
  static LateQueue& QueueOf(Stream& stream) { return static_cast<LateQueue&>(*stream.queue()); }
  static DeviceStatus Stopped() { return {DeviceStatus::Code::kStopped, "strict: stopped"}; }
  static DeviceStatus Failed() {
    return {DeviceStatus::Code::kFailed, "strict: the device has failed"};
  }
  static DeviceStatus OtherMemory(const std::string& what) {
    return {DeviceStatus::Code::kFailed,
            absl::StrCat("strict: ", what, " has a view of other memory")};
  }

  // Nothing runs once it has failed.
  template <class Work>
  void Add(Stream& stream, Work work) {
    QueueOf(stream).Add(
        [this, work = std::move(work)]() mutable { return has_failed_ ? Failed() : work(); });
  }

  bool Holds(const void* data, size_t bytes) {
    return bytes == 0 || arena_.Holds(data, static_cast<const char*>(data) + bytes - 1);
  }
  // All of it: strides are not negative.
  bool Holds(const View& view) {
    if (!view.given() || view.shape.size() == 0) return true;
    int64_t last = 0;
    for (int i = 0; i < view.shape.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
    return Holds(view.data, static_cast<size_t>((last + 1) * SizeOf(view.dtype)));
  }

  // A copy that lives as long as the pattern, and is filled in the order of the stream: what a
  // device with memory of its own keeps.
  static std::shared_ptr<const Pattern> Own(Stream& stream,
                                            const std::shared_ptr<const Pattern>& pattern) {
    if (pattern == nullptr) return nullptr;
    return std::static_pointer_cast<const Pattern>(pattern->copies->Of(stream, [&] {
      const auto own = std::make_shared<Pattern>();
      QueueOf(stream).Add([own, pattern] {
        *own = *pattern;
        return DeviceStatus();
      });
      return own;
    }));
  }
  static void UsePatternsOfMyOwn(Stream& stream, AttendProblem* problem) {
    for (AttendSeq& seq : problem->seqs) {
      seq.pattern = Own(stream, seq.pattern);
      for (auto& pattern : seq.head_patterns) pattern = Own(stream, pattern);
    }
  }
  static void UsePatternsOfMyOwn(Stream& stream, Launch* launch) {
    if (auto* args = std::get_if<AttendArgs>(launch)) {
      for (AttendProblem& problem : args->problems) UsePatternsOfMyOwn(stream, &problem);
    }
    if (auto* args = std::get_if<AttendGradArgs>(launch)) {
      for (AttendGradProblem& problem : args->problems) {
        UsePatternsOfMyOwn(stream, &problem.forward);
      }
    }
  }

  const LaunchSet declined_;
  const int64_t fails_at_;
  std::atomic<int64_t> launched_ = 0, to_device_ = 0, to_host_ = 0;
  std::atomic<bool> has_failed_ = false;
  Arena arena_;
  std::optional<Arena::Scope> open_;
  BufferPool memory_;
  const std::unique_ptr<Device> cpu_;
  DeviceInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> NewStrictDevice(const StrictOptions& options) {
  absl::StatusOr<std::unique_ptr<Device>> cpu = NewCpuDevice(options.cpu);
  ATTND_RETURN_IF_ERROR(cpu.status());
  return std::make_unique<StrictDevice>(*std::move(cpu), options);
}

}  // namespace attnd::testing
