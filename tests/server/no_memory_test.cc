// The status for an exception that ends a request says only that the server failed.
#include "server/no_memory.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "absl/status/statusor.h"

namespace attnd {
namespace {

// Regression: the lane sent the text of the exception.
TEST(GuardedTest, AnExceptionIsAnErrorWithoutItsText) {
  const auto throws = [](const auto& error) {
    return Guarded([&]() -> absl::StatusOr<int> { throw error; }).status();
  };
  EXPECT_EQ(throws(std::runtime_error("vector::at")),
            absl::InternalError("request: the server failed"));
  EXPECT_EQ(throws(std::bad_alloc()),
            absl::ResourceExhaustedError("request: the server has no memory for it, retry later"));
  EXPECT_EQ(*Guarded([]() -> absl::StatusOr<int> { return 5; }), 5);
}

}  // namespace
}  // namespace attnd
