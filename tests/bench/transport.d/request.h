// The request that every gRPC client of this benchmark sends, but for its payloads.
#pragma once

#include "attn/v1/attention.pb.h"

namespace attnd::bench {

// Softmax over one position of `bytes` / 4 float32 channels: an attnd-server answers it as well,
// with out = v, while D is within its limit.
inline attn::v1::ForwardRequest RequestHead(size_t bytes) {
  attn::v1::ForwardRequest request;
  request.mutable_method()->mutable_softmax();
  uint32_t index = 0;
  for (const char* name : {"q", "k", "v"}) {
    attn::v1::Tensor& tensor = *request.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(attn::v1::DType::float32);
    for (int64_t size : {int64_t{1}, int64_t{1}, int64_t{1}, static_cast<int64_t>(bytes / 4)}) {
      tensor.add_shape(size);
    }
    tensor.set_raw_index(index++);
  }
  return request;
}

}  // namespace attnd::bench
