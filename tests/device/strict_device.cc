#include "tests/device/strict_device.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "tests/device/arena.h"

namespace attnd::testing {
namespace {

// The thread that does the device's work, in the order of asking, once somebody waits for it.
class Worker {
 public:
  using Work = std::function<void()>;

  explicit Worker(Arena* arena) : arena_(arena), thread_([this] { Loop(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mu_);
      asked_ = last_;
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int64_t Add(Work work) {
    const std::lock_guard lock(mu_);
    works_.push_back(std::move(work));
    return ++last_;
  }
  bool HasPassed(int64_t position) {
    const std::lock_guard lock(mu_);
    return done_ >= position;
  }
  void WaitFor(int64_t position) {
    std::unique_lock lock(mu_);
    if (position > asked_) asked_ = position;
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ >= position; });
  }

 private:
  void Loop() {
    std::unique_lock lock(mu_);
    for (;;) {
      changed_.wait(lock, [&] { return done_ < asked_ || ends_; });
      if (done_ == asked_ && ends_) return;
      const Arena::Scope open(arena_);
      while (done_ < asked_) {
        Work work = std::move(works_.front());
        works_.pop_front();
        lock.unlock();
        work();
        work = nullptr;  // what it held may take locks as it goes
        lock.lock();
        ++done_;
        changed_.notify_all();
      }
    }
  }

  Arena* const arena_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  int64_t last_ = 0, asked_ = 0, done_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

class Queue final : public WorkQueue {
 public:
  explicit Queue(Worker* worker) : worker_(worker) {}

  int64_t position() const override {
    const std::lock_guard lock(mu_);
    return last_;
  }
  bool HasPassed(int64_t position) const override { return worker_->HasPassed(position); }
  DeviceStatus Wait() override {
    worker_->WaitFor(position());
    const std::lock_guard lock(mu_);
    return std::exchange(failure_, DeviceStatus());
  }

  // `work` gives the status of what it did.
  void Add(std::function<DeviceStatus()> work) {
    const std::lock_guard lock(mu_);
    last_ = worker_->Add([this, work = std::move(work)] {
      DeviceStatus status = work();
      if (!status.ok()) Keep(std::move(status));
    });
  }

 private:
  void Keep(DeviceStatus status) {
    const std::lock_guard lock(mu_);
    if (failure_.ok()) failure_ = std::move(status);
  }

  Worker* const worker_;
  mutable std::mutex mu_;
  int64_t last_ = 0;
  DeviceStatus failure_;
};

class StrictMemory final : public MemorySource {
 public:
  explicit StrictMemory(Arena* arena) : arena_(arena) {}
  void* Allocate(int64_t bytes) override { return arena_->Allocate(bytes); }
  void Free(void* data, int64_t bytes) override { arena_->Free(data, bytes); }
  void Fill(WorkQueue* queue, void* data, int64_t bytes, uint8_t value) override {
    const auto fill = [=] {
      std::memset(data, value, static_cast<size_t>(bytes));
      return DeviceStatus();
    };
    if (queue != nullptr) return static_cast<Queue*>(queue)->Add(fill);
    const Arena::Scope open(arena_);
    static_cast<void>(fill());
  }

 private:
  Arena* const arena_;
};

class StrictDevice final : public Device {
 public:
  StrictDevice(std::unique_ptr<Device> cpu, const StrictOptions& options)
      : declined_(options.declined),
        memory_(options.cpu.retain_bytes, options.cpu.poison_memory,
                std::make_unique<StrictMemory>(&arena_)),
        cpu_(std::move(cpu)),
        info_(cpu_->info()),
        worker_(&arena_) {
    info_.has_host_memory = false;
    info_.memory_bytes = options.memory_bytes;
  }

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return memory_; }
  std::shared_ptr<WorkQueue> NewQueue() override { return std::make_shared<Queue>(&worker_); }
  int64_t launches() const override { return cpu_->launches(); }

  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (declined_[launch.index()]) {
      return {DeviceStatus::Code::kDeclined, "strict: declined"};
    }
    if (stream.is_dry()) return cpu_->Run(stream, std::move(launch));
    if (stream.stopped()) return {DeviceStatus::Code::kStopped, "strict: stopped"};
    bool is_inside = true;
    ForEachView(launch, [&](const View& view) {
      const bool has_data = view.given() && view.shape.size() > 0;
      is_inside = is_inside && (!has_data || arena_.Holds(view.data));
    });
    if (!is_inside) {
      return {DeviceStatus::Code::kFailed,
              absl::StrCat("strict: launch ", launch.index(), " has a view of other memory")};
    }
    UsePatternsOfMyOwn(&launch);
    QueueOf(stream).Add([this, control = stream.control(), launch = std::move(launch)]() mutable {
      Stream own(*cpu_, &cpu_->memory(), control);
      return cpu_->Run(own, std::move(launch));
    });
    return {};
  }

  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    if (stream.is_dry()) return cpu_->Upload(stream, destination, spans, nullptr);
    if (stream.stopped()) return {DeviceStatus::Code::kStopped, "strict: stopped"};
    std::vector<std::span<const std::byte>> pieces(spans.begin(), spans.end());
    QueueOf(stream).Add([=, pieces = std::move(pieces), source = std::move(source)] {
      auto* to = static_cast<std::byte*>(destination);
      for (const auto& piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
      return DeviceStatus();
    });
    return {};
  }

  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    if (stream.stopped()) return {DeviceStatus::Code::kStopped, "strict: stopped"};
    QueueOf(stream).Add([=] {
      std::memcpy(bytes.data(), source, bytes.size());
      return DeviceStatus();
    });
    return {};
  }

 private:
  static Queue& QueueOf(Stream& stream) { return static_cast<Queue&>(*stream.queue()); }

  // Copies that live as long as the pattern, as a device with memory of its own would keep.
  std::shared_ptr<const Pattern> Own(const std::shared_ptr<const Pattern>& pattern) const {
    if (pattern == nullptr) return nullptr;
    return std::static_pointer_cast<const Pattern>(
        pattern->copies.Of(this, [&] { return std::make_shared<const Pattern>(*pattern); }));
  }
  void UsePatternsOfMyOwn(AttendProblem* problem) const {
    for (AttendSeq& row : problem->rows) {
      row.pattern = Own(row.pattern);
      for (auto& pattern : row.head_patterns) pattern = Own(pattern);
    }
  }
  void UsePatternsOfMyOwn(Launch* launch) const {
    if (auto* args = std::get_if<AttendArgs>(launch)) {
      for (AttendProblem& problem : args->problems) UsePatternsOfMyOwn(&problem);
    }
    if (auto* args = std::get_if<AttendGradArgs>(launch)) {
      for (AttendGradProblem& problem : args->problems) UsePatternsOfMyOwn(&problem.forward);
    }
  }

  const LaunchSet declined_;
  Arena arena_;
  BufferPool memory_;
  const std::unique_ptr<Device> cpu_;
  DeviceInfo info_;
  Worker worker_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> NewStrictDevice(const StrictOptions& options) {
  absl::StatusOr<std::unique_ptr<Device>> cpu = NewCpuDevice(options.cpu);
  ATTND_RETURN_IF_ERROR(cpu.status());
  return std::make_unique<StrictDevice>(*std::move(cpu), options);
}

}  // namespace attnd::testing
