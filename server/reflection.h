// grpc.reflection: descriptors of what the server serves, for tools.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/transport.h"

namespace attnd {

// The versions of the service. Their messages have equal fields, so one handler answers both.
constexpr const char* kReflectionServices[] = {"grpc.reflection.v1.ServerReflection",
                                               "grpc.reflection.v1alpha.ServerReflection"};

// Answers from the descriptors that are linked into the process. An error in a request is reported
// in its response, in the order of the requests, and never ends the stream. A stream reads its next
// request when the response has left, so a client that does not read holds one response.
//
// Everything runs on the polling thread; the object outlives the transport.
class Reflection {
 public:
  // `services`: full names, listed in this order.
  explicit Reflection(std::vector<std::string> services);

  void AddMethods(MethodTable* table);

  // Ends every stream with UNAVAILABLE; otherwise the server would wait for them when it stops.
  void CloseStreams();

 private:
  class Stream;

  const std::vector<std::string> services_;
  bool closed_ = false;
  std::set<Stream*> streams_;
};

}  // namespace attnd
