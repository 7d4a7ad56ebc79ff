// Problems of views in host memory, on any device.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/engine/engine.h"

namespace attnd::testing {

// The tensors of `problem`, dense ones of the host, uploaded as Execute requires. `buffers` keep
// them alive.
inline absl::Status Upload(Engine& engine, Stream& stream, Problem* problem,
                           std::vector<std::shared_ptr<Buffer>>* buffers) {
  for (auto& [name, view] : problem->tensors) {
    const auto* data = view.As<const std::byte>();
    const std::span<const std::byte> pieces[] = {{data, static_cast<size_t>(view.bytes())}};
    absl::StatusOr<std::shared_ptr<Buffer>> buffer =
        engine.Upload(stream, view.dtype, pieces, /*source=*/nullptr);
    ATTND_RETURN_IF_ERROR(buffer.status());
    view.data = (*buffer)->data();
    buffers->push_back(*std::move(buffer));
  }
  return absl::OkStatus();
}

// Runs plans on views in host memory, which are uploaded where the device works on other memory.
inline absl::StatusOr<Execution> ExecutePlaced(Engine& engine, Stream& stream,
                                               std::vector<Problem> batch) {
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (Problem& problem : batch) {
    if (stream.shares_host_memory()) break;
    ATTND_RETURN_IF_ERROR(Upload(engine, stream, &problem, &buffers));
  }
  return engine.Execute(stream, batch);
}

// Plans `call` and runs it alone on its device, on a new stream.
inline absl::StatusOr<Execution> PlanAndExecute(Engine& engine, const Call& call,
                                                RunControl* control = nullptr) {
  absl::StatusOr<std::shared_ptr<const Plan>> plan = engine.MakePlan(call, control);
  ATTND_RETURN_IF_ERROR(plan.status());
  Device& device = engine.device((*plan)->device);
  Stream stream(device, &device.memory(), control);
  return ExecutePlaced(engine, stream, {{*plan, call.tensors}});
}

// Of one problem each.
inline void ExpectSameBits(const Execution& a, const Execution& b) {
  ASSERT_TRUE(a.results.size() == 1 && b.results.size() == 1);
  ASSERT_EQ(a.results[0].size(), b.results[0].size());
  for (size_t i = 0; i < a.results[0].size(); ++i) {
    const Result &x = a.results[0][i], &y = b.results[0][i];
    ASSERT_EQ(x.view.bytes(), y.view.bytes());
    EXPECT_EQ(std::memcmp(x.view.data, y.view.data, x.view.bytes()), 0) << x.info.name;
  }
}

}  // namespace attnd::testing
