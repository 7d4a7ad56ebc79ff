// A protobuf message for the time of one function.
#pragma once

#include <google/protobuf/arena.h>

#include <cstddef>

namespace attnd {

// Lives on the stack with everything it holds, as far as kBytes go: the head of a usual request
// then takes some twenty allocations less.
template <class Message>
class Scratch {
 public:
  Scratch() : arena_(block_, kBytes) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Message& operator*() { return *message_; }
  Message* operator->() { return message_; }
  Message* get() { return message_; }

 private:
  static constexpr size_t kBytes = 4 << 10;

  alignas(std::max_align_t) char block_[kBytes];
  google::protobuf::Arena arena_;
  Message* const message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

}  // namespace attnd
