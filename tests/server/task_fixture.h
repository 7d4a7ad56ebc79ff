// Tasks for the tests of the queue and of lanes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/batcher.h"
#include "tests/server/fake_clock.h"

namespace attnd {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

// Admitted now, without a deadline; its answer is left to the test.
inline std::unique_ptr<Task> NewTask(std::shared_ptr<const Plan> plan, const Clock& clock,
                                     int64_t charged_bytes) {
  auto task = std::make_unique<Task>();
  task->plan = std::move(plan);
  task->admitted = clock.Now();
  task->cancelled = std::make_shared<std::atomic<bool>>(false);
  task->charged_bytes = charged_bytes;
  return task;
}

}  // namespace attnd
