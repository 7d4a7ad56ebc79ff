// Descriptors of the stand-in for cuDNN: what was set, checked against what is known of each kind.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/cudnn_api.h"

namespace emu {

using namespace attnd::cuda::dnn;

// Of NVIDIA's values that only the stand-in returns.
constexpr auto kNotInitialized = static_cast<cudnnStatus_t>(1001),
               kBadParam = static_cast<cudnnStatus_t>(2000),
               kNotSupported = static_cast<cudnnStatus_t>(3000),
               kExecutionFailed = static_cast<cudnnStatus_t>(5000);

// Shared by all descriptors that name it: one may end before those.
struct Node {
  struct Attribute {
    cudnnBackendAttributeType_t type;
    std::vector<std::byte> data;
    std::vector<std::shared_ptr<const Node>> nodes;  // of a type that is descriptors
  };

  cudnnBackendDescriptorType_t kind;
  bool is_finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;

  bool Has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  // Of a truth that may not have been set.
  bool Is(cudnnBackendAttributeName_t name) const { return Has(name) && One<bool>(name); }
  // REQUIRES: it has the attribute.
  template <class T>
  T One(cudnnBackendAttributeName_t name) const {
    return *reinterpret_cast<const T*>(attributes.at(name).data.data());
  }
  template <class T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const std::vector<std::byte>& data = attributes.at(name).data;
    const auto* const begin = reinterpret_cast<const T*>(data.data());
    return {begin, begin + data.size() / sizeof(T)};
  }
  const Node& At(cudnnBackendAttributeName_t name) const { return *attributes.at(name).nodes[0]; }
};

// What a caller holds.
struct Held {
  std::shared_ptr<Node> node;
};

// Whether a tensor is one number that a call gives by value.
bool IsNumber(const Node& tensor, cudnnDataType_t type);
// Sets what the kind knows, of the right type; kBadParam otherwise.
cudnnStatus_t SetAttribute(Node* node, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void* elements);
// Whether all that the kind requires is set, and makes sense.
cudnnStatus_t Finalize(Node* node);
// For results of the library.
template <class T>
void Put(Node* node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         const std::vector<T>& values) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  node->attributes[name] = {type, {bytes, bytes + values.size() * sizeof(T)}, {}};
}

}  // namespace emu
