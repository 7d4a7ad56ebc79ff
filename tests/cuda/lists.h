// Launches of the CUDA device, of which every result is the same in any order of threads, in a list
// and alone.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/cuda/thread_orders.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

// Expects that `outs` get the same bits from all problems of `args` in every thread order, and from
// each alone.
template <class Args>
void ExpectOneResult(const Args& args, std::vector<TestArray*> outs) {
  Device& device = CpuOf("cuda", 1);
  const auto clear = [&] {
    for (TestArray* out : outs) out->Write(PlainArray(out->view().shape, NAN));
  };
  const auto run = [&](const Args& some) {
    RunOn(device, [&](Stream& stream) { return device.Run(stream, some); });
  };
  const auto bytes = [&] {
    std::vector<std::vector<std::byte>> all;
    for (TestArray* out : outs) all.push_back(out->Bytes());
    return all;
  };
  run(args);
  const auto expected = bytes();
  ForEachThreadOrder([&](const std::string& order) {
    clear();
    run(args);
    EXPECT_TRUE(bytes() == expected) << order;
  });
  clear();
  for (const auto& problem : args.problems) {
    Args alone = args;
    alone.problems = {problem};
    run(alone);
  }
  EXPECT_TRUE(bytes() == expected) << "each alone";
}

}  // namespace attnd::testing
