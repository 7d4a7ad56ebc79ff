#include "core.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

std::chrono::system_clock::time_point DeadlineAfter(std::chrono::nanoseconds timeout) {
  using Clock = std::chrono::system_clock;
  const auto now = Clock::now();
  // gRPC takes times before 1970 for no deadline, and adding must not overflow.
  timeout = std::clamp(timeout, std::chrono::nanoseconds(0),
                       std::chrono::nanoseconds(Clock::time_point::max() - now));
  return now + std::chrono::duration_cast<Clock::duration>(timeout);
}

}  // namespace

Core::Core(const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
    : options_(options),
      events_(std::chrono::microseconds(options.spin_us)),
      stub_(std::make_shared<grpc::GenericStub>(channel)) {}

std::shared_ptr<grpc::GenericStub> Core::stub() const {
  const MutexLock lock(&mu_);
  return stub_;
}

std::unique_ptr<grpc::ClientContext> Core::NewContext(
    std::optional<std::chrono::nanoseconds> timeout) const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (timeout.has_value()) context->set_deadline(DeadlineAfter(*timeout));
  if (!options_.token.empty()) {
    context->AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
  }
  return context;
}

EventQueue* Core::Add(std::shared_ptr<Activity> activity) {
  const MutexLock lock(&mu_);
  if (stub_ == nullptr) return nullptr;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      thread_id_.store(std::this_thread::get_id());
      while (events_.Next()) {
      }
    });
  }
  activities_.emplace(activity.get(), activity);
  return &events_;
}

void Core::Remove(Activity* activity) {
  std::shared_ptr<Activity> last;
  const MutexLock lock(&mu_);
  const auto found = activities_.find(activity);
  last = std::move(found->second);
  activities_.erase(found);
  if (activities_.empty()) none_left_.NotifyAll();
}

void Core::Close() {
  std::shared_ptr<grpc::GenericStub> stub;
  std::vector<std::shared_ptr<Activity>> left;
  {
    const MutexLock lock(&mu_);
    // A callback that runs from here on can start nothing.
    stub = std::exchange(stub_, nullptr);
    for (const auto& [_, activity] : activities_) left.push_back(activity);
  }
  for (const auto& activity : left) activity->Cancel();
  left.clear();
  {
    const MutexLock lock(&mu_);
    while (!activities_.empty()) none_left_.Wait(&mu_);
  }
  events_.Shutdown();
  if (thread_.joinable()) thread_.join();
}

}  // namespace attnd::client
