// One descriptor of cuDNN's, of which graphs and plans consist.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cudnn_api.h"

namespace attnd::cuda::dnn {

// It ends with its owner. When one call has failed, further ones do nothing.
class Descriptor {
 public:
  Descriptor(const Functions& functions, cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* elements);
  // Fails where one of the descriptors has failed.
  void Set(cudnnBackendAttributeName_t name, const std::vector<const Descriptor*>& descriptors);
  void Set(cudnnBackendAttributeName_t name, const Descriptor& descriptor);
  void Set(cudnnBackendAttributeName_t name, int64_t number);
  bool Finalize();
  // How many of at most `most` elements were written; 0: the library does not tell.
  int64_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
              void* elements) const;

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t status() const { return status_; }

 private:
  const Functions& functions_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  cudnnStatus_t status_;
};

}  // namespace attnd::cuda::dnn
