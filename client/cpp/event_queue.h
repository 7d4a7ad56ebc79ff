// A completion queue and what runs when it hands something back.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <vector>

namespace attnd::client {

// The tags of a completion queue.
class Event {
 public:
  virtual void Run(bool ok) = 0;

 protected:
  ~Event() = default;
};

// Used by one thread at a time, but for tags(). It also polls for conditions that cause no event:
// memory that gRPC has released, time that has passed.
class EventQueue {
 public:
  // Polls for `spin` before it sleeps.
  explicit EventQueue(std::chrono::microseconds spin) : spin_(spin) {}
  // Runs the events that are left.
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // For calls, from any thread.
  grpc::CompletionQueue* tags() { return &tags_; }
  // Calls `run` once `ready` returns true, which is checked every millisecond. From inside Next.
  void RunWhen(std::function<bool()> ready, std::function<void()> run);
  // Calls `run` once the events that are there already have been handed back. From inside Next.
  void RunSoon(std::function<void()> run) { soon_.push_back(std::move(run)); }
  // Waits for an event and runs it, or checks RunWhen's. False: shut down, and no event is left.
  bool Next();
  // No further calls. Any thread.
  void Shutdown() { tags_.Shutdown(); }

 private:
  struct Waiting {
    std::function<bool()> ready;
    std::function<void()> run;
  };

  grpc::CompletionQueue::NextStatus Take(Event** event, bool* ok);
  void RunReady();
  void RunAllSoon();

  const std::chrono::microseconds spin_;
  grpc::CompletionQueue tags_;
  std::vector<Waiting> waiting_;
  std::vector<std::function<void()>> soon_;
  int events_before_soon_ = 0;
};

}  // namespace attnd::client
