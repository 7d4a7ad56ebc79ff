#include "kernels/cuda/cudnn_descriptor.h"

#include <algorithm>

namespace attnd::cuda::dnn {

Descriptor::Descriptor(const Functions& functions, cudnnBackendDescriptorType_t type)
    : functions_(functions), status_(functions.BackendCreateDescriptor(type, &descriptor_)) {}

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) functions_.BackendDestroyDescriptor(descriptor_);
}

void Descriptor::Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* elements) {
  if (ok()) status_ = functions_.BackendSetAttribute(descriptor_, name, type, count, elements);
}

void Descriptor::Set(cudnnBackendAttributeName_t name,
                     const std::vector<const Descriptor*>& descriptors) {
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const Descriptor* descriptor : descriptors) {
    if (!descriptor->ok()) status_ = descriptor->status();
    handles.push_back(descriptor->get());
  }
  Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(handles.size()), handles.data());
}

void Descriptor::Set(cudnnBackendAttributeName_t name, const Descriptor& descriptor) {
  Set(name, std::vector<const Descriptor*>{&descriptor});
}

void Descriptor::Set(cudnnBackendAttributeName_t name, int64_t number) {
  Set(name, CUDNN_TYPE_INT64, 1, &number);
}

bool Descriptor::Finalize() {
  if (ok()) status_ = functions_.BackendFinalize(descriptor_);
  return ok();
}

int64_t Descriptor::Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        int64_t most, void* elements) const {
  int64_t count = 0;
  if (!ok()) return 0;
  const cudnnStatus_t status =
      functions_.BackendGetAttribute(descriptor_, name, type, most, &count, elements);
  return status == CUDNN_STATUS_SUCCESS ? std::min(count, most) : 0;
}

}  // namespace attnd::cuda::dnn
