// What devices keep of a pattern in memory of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "kernels/core/mutex.h"
#include "kernels/device/stream.h"

namespace attnd {

// A copy is made when a device first needs it and released with the pattern. Its memory is that of
// its device, whose pool counts it. Thread safe.
class DeviceCopies {
 public:
  // The copy of the stream's device, which may be used in the order of `stream`. `make` makes it,
  // in work that it asks of `stream`; null: it cannot. Waits for the stream that made it, where
  // that is another one whose work has not come so far. A copy whose work failed is made again. The
  // caller keeps the copy until the work that reads it has passed: the memory of a released one may
  // serve other streams.
  std::shared_ptr<const void> Of(Stream& stream,
                                 const std::function<std::shared_ptr<const void>()>& make);

 private:
  struct Copy {
    std::shared_ptr<const void> data;
    // It is made when this has passed `position`; null: it is made. A copy does not keep the queue
    // of the stream that made it.
    std::shared_ptr<WorkProgress> progress;
    int64_t position = 0;
  };
  Mutex mu_;
  std::map<const Device*, Copy> copies_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
