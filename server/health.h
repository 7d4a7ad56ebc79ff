// grpc.health.v1.Health: Check and Watch. The whole process and its services share one state.
#pragma once

#include <atomic>
#include <set>
#include <string>

#include "server/transport.h"

namespace attnd {

// Everything but is_serving() runs on the polling thread; the object outlives the transport.
class Health {
 public:
  // `services`: the valid names besides "".
  explicit Health(std::set<std::string> services);

  void AddMethods(MethodTable* table);

  bool is_serving() const { return serving_.load(); }  // any thread
  // Sends the new state to every Watch.
  void SetServing(bool serving);
  // Ends every Watch with UNAVAILABLE; otherwise the server would wait for them when it stops.
  void CloseWatches();

 private:
  class CheckCall;
  class WatchCall;
  bool has_service(const std::string& service) const { return services_.count(service) != 0; }

  const std::set<std::string> services_;
  std::atomic<bool> serving_{true};
  bool closed_ = false;
  std::set<WatchCall*> watches_;
};

}  // namespace attnd
