// The orders in which the emulator runs threads: the bits of a result must not depend on them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#ifndef ATTND_TESTS_ON_DEVICE
#include "tests/cuda/emulator/options.h"
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
  };
  const Case cases[] = {{"forward", {.order = emu::Order::kForward}},
                        {"reverse", {.order = emu::Order::kReverse}},
                        {"random 1", {.order = emu::Order::kRandom, .seed = 1}},
                        {"random 2", {.order = emu::Order::kRandom, .seed = 2}},
                        {"2 workers", {.order = emu::Order::kRandom, .seed = 3, .workers = 2}}};
  const emu::Options before = emu::options;
  for (const Case& c : cases) {
    emu::options = c.options;
    f(std::string(c.name));
  }
  emu::options = before;
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
