// Requests for tests, and waiting for what happens on other threads.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "attnd/client.h"

namespace attnd::client {

constexpr std::chrono::seconds kLong{30};  // a test that waits for so long has failed

inline std::unique_ptr<Client> MustCreate(const ClientOptions& options) {
  return *Client::Create(options);
}

// `n` different values.
inline std::vector<float> Values(int64_t n, float first = 0) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// A softmax Forward of q alone, [1,1,n,1].
inline Request RequestOf(const std::vector<float>& q) {
  Request request;
  request.method.mutable_softmax();
  request.tensors = {
      {.name = "q", .shape = {1, 1, static_cast<int64_t>(q.size()), 1}, .data = q.data()}};
  return request;
}

// The values of tensor `name` of a reply; a test failure and no values if there is none.
inline std::vector<float> FloatsOf(const Reply& reply, const std::string& name = "out") {
  const ReplyTensor* tensor = reply.Find(name);
  EXPECT_NE(tensor, nullptr) << "the reply has no " << name;
  return tensor == nullptr ? std::vector<float>() : tensor->ToVector<float>();
}

// Waits until `is_so` returns true, at most kLong. Returns its last result.
inline bool Eventually(const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!is_so() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_so();
}

}  // namespace attnd::client
