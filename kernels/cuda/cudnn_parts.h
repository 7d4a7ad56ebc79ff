// The tensors of a graph of attention, as cuDNN's descriptors say them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/cudnn_descriptor.h"

namespace attnd::cuda::dnn {

// What a call gives its data by: unique ids, which begin at 1. Further ids are of tensors that
// exist nowhere.
enum class Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kScale,        // float, on the host, as all that follow
  kRightHidden,  // float: what scores beyond `after` become
  kAfter,        // int32
  kLeftHidden,   // float
  kBefore,       // float
};

// The descriptors of one graph, which end with it.
class GraphParts {
 public:
  GraphParts(const Functions& functions, const DnnAttend& attend)
      : functions_(functions), attend_(attend) {}

  const DnnAttend& attend() const { return attend_; }
  Descriptor& New(cudnnBackendDescriptorType_t type);
  // Tensors are finalized.
  const Descriptor& Queries();         // [1,H,Nq,D]
  const Descriptor& TransposedKeys();  // [1,Hkv,D,Nk]
  const Descriptor& Values();          // [1,Hkv,Nk,Dv]
  const Descriptor& Out();             // [1,H,Nq,Dv]
  const Descriptor& Lse();             // [1,H,Nq,1]
  const Descriptor& Number(Uid uid, cudnnDataType_t type);
  // [1,H,Nq,columns], which exists nowhere, with the next id.
  const Descriptor& Virtual(cudnnDataType_t type, int64_t columns);
  cudnnDataType_t rows_type() const;

 private:
  struct Tensor;
  const Descriptor& NewTensor(const Tensor& tensor);
  Tensor RowsOf(Uid uid, int64_t H, int64_t N, int64_t D, const DnnRows& rows) const;

  const Functions& functions_;
  const DnnAttend& attend_;
  std::vector<std::unique_ptr<Descriptor>> parts_;
  int64_t last_id_ = static_cast<int64_t>(Uid::kBefore);
};

}  // namespace attnd::cuda::dnn
