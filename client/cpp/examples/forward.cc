// Local attention and its gradients, from a server at argv[1].
#include <iostream>
#include <string>
#include <vector>

#include "attnd/client.h"

namespace client = attnd::client;

namespace {

int Fail(const absl::Status& status) {
  std::cerr << status << '\n';
  return 1;
}

void Print(const client::Reply& reply) {
  for (const client::ReplyTensor& tensor : reply.tensors()) {
    std::cout << tensor.name;
    for (const int64_t n : tensor.shape) std::cout << ' ' << n;
    std::cout << '\n';
  }
  std::cout << reply.stats().device() << ", compute " << reply.stats().compute_seconds() << " s\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string target = argc > 1 ? argv[1] : "127.0.0.1:8001";
  const auto client = client::Client::Create({.target = target});
  if (!client.ok()) return Fail(client.status());

  const std::vector<int64_t> shape = {1, 8, 512, 64};  // [B,H,N,D]
  const std::vector<float> x(1 * 8 * 512 * 64, 0.5f), grad(x.size(), 1.0f);
  client::Request request;
  request.method.mutable_local()->set_window_left(64);
  request.method.mutable_local()->set_causal(true);
  for (const char* name : {"q", "k", "v"}) {
    request.tensors.push_back({.name = name, .shape = shape, .data = x.data()});
  }
  const auto reply = (*client)->Forward(request);
  if (!reply.ok()) return Fail(reply.status());
  Print(*reply);
  const std::vector<float> out = reply->Find("out")->ToVector<float>();
  std::cout << "out[0] = " << out[0] << '\n';

  request.tensors.push_back({.name = "grad_out", .shape = shape, .data = grad.data()});
  const auto gradients = (*client)->Backward(request);
  if (!gradients.ok()) return Fail(gradients.status());
  Print(*gradients);
}
