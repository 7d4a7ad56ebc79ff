// What a client is told of an exception that ends its request: no more than that the server failed.
#include "server/no_memory.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "absl/status/statusor.h"

namespace attnd {
namespace {

// The lane sent the exception's own text.
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
