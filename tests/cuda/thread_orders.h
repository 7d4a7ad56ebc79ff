// The orders in which the emulator runs threads, and the paces of its streams: the bits of a result
// must not depend on them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#ifndef ATTND_TESTS_ON_DEVICE
#include "tests/cuda/emulator/options.h"
#include "tests/cuda/emulator/streams.h"
#endif

namespace attnd::testing {

// Calls f(name) in five of them; a device has its own order.
template <class F>
void ForEachThreadOrder(const F& f) {
#ifdef ATTND_TESTS_ON_DEVICE
  f(std::string("device"));
#else
  struct Case {
    const char* name;
    emu::Options options;
    emu::Pace pace = emu::Pace::kLate;
  };
  const Case cases[] = {{"forward", {.order = emu::Order::kForward}},
                        {"reverse", {.order = emu::Order::kReverse}},
                        {"random 1", {.order = emu::Order::kRandom, .seed = 1}, emu::Pace::kRandom},
                        {"random 2", {.order = emu::Order::kRandom, .seed = 2}, emu::Pace::kAtOnce},
                        {"2 workers", {.order = emu::Order::kRandom, .seed = 3, .workers = 2}}};
  const emu::Options before = emu::options;
  const emu::Pace pace = emu::stream_options.pace;
  for (const Case& c : cases) {
    emu::options = c.options;
    emu::stream_options.pace = c.pace;
    f(std::string(c.name));
  }
  emu::options = before;
  emu::stream_options.pace = pace;
#endif
}

// Runs `test` in several orders of the threads; a device has its own.
template <class Test>
void InEveryOrder(const Test& test) {
  ForEachThreadOrder([&](const std::string& order) {
    SCOPED_TRACE(order);
    test();
  });
}

}  // namespace attnd::testing
