// Shared by a client's calls and pipelines: the channel, and the thread of asynchronous work.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>

#include "attnd/client.h"
#include "event_queue.h"
#include "kernels/core/mutex.h"
#include "retry.h"

namespace attnd::client {

// Work in the background, which ends soon after Cancel.
class Activity {
 public:
  virtual ~Activity() = default;
  virtual void Cancel() = 0;
};

class Core {
 public:
  Core(const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel);
  // REQUIRES: Close was called.
  ~Core() = default;
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  const ClientOptions& options() const { return options_; }
  // Null once the client is closed.
  std::shared_ptr<grpc::GenericStub> stub() const;
  // With the deadline and the metadata of every call.
  std::unique_ptr<grpc::ClientContext> NewContext(
      std::optional<std::chrono::nanoseconds> timeout) const;

  // Keeps `activity` until Remove, which it must call. Starts the thread if it is the first one.
  // Null: the client is closed.
  EventQueue* Add(std::shared_ptr<Activity> activity);
  void Remove(Activity* activity);
  // Cancels all activities and waits for their ends. REQUIRES: not is_on_thread().
  void Close();

  // On the client's thread only.
  RetryBucket& stream_retries() { return stream_retries_; }

  bool is_on_thread() const { return std::this_thread::get_id() == thread_id_.load(); }

 private:
  const ClientOptions options_;
  EventQueue events_;
  std::atomic<std::thread::id> thread_id_;
  RetryBucket stream_retries_;

  mutable Mutex mu_;
  CondVar none_left_;
  std::shared_ptr<grpc::GenericStub> stub_ ATTND_GUARDED_BY(mu_);
  std::unordered_map<Activity*, std::shared_ptr<Activity>> activities_ ATTND_GUARDED_BY(mu_);

  // Started by the first activity: a client of blocking calls has no second thread, which would
  // compete with them for events.
  std::thread thread_;
};

}  // namespace attnd::client
