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
  kDout,  // of a gradient, as all to kDqSums
  kDq,
  kDk,
  kDv,
  kShift,        // float [H,Nq]: dout . out
  kDqSums,       // float [H,Nq,D]: dq before it is rounded
  kScale,        // float, on the host, as all that follow
  kOne,          // float: 1
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
  const Descriptor& Queries();            // [1,H,Nq,D]
  const Descriptor& TransposedKeys();     // [1,Hkv,D,Nk]
  const Descriptor& Values();             // [1,Hkv,Nk,Dv]
  const Descriptor& TransposedValues();   // [1,Hkv,Dv,Nk]
  const Descriptor& Out();                // [1,H,Nq,Dv]
  const Descriptor& Lse();                // [1,H,Nq,1]
  const Descriptor& OutGradient();        // [1,H,Nq,Dv]
  const Descriptor& QueryGradient();      // [1,H,Nq,D]
  const Descriptor& KeyGradient();        // [1,Hkv,Nk,D]
  const Descriptor& ValueGradient();      // [1,Hkv,Nk,Dv]
  const Descriptor& Shift();              // [1,H,Nq,1]
  const Descriptor& QueryGradientSums();  // [1,H,Nq,D]
  const Descriptor& Number(Uid uid, cudnnDataType_t type);
  // [1,H,Nq,columns], which exists nowhere, with the next id.
  const Descriptor& Virtual(cudnnDataType_t type, int64_t columns);
  // [1,H,Nk,Nq], the same way: the transposed of Virtual(.., Nk).
  const Descriptor& Transposed(cudnnDataType_t type);
  // [1,Hkv,Nk,D], the same way: the transposed of TransposedKeys.
  const Descriptor& Keys(cudnnDataType_t type);
  cudnnDataType_t rows_type() const;

 private:
  struct Tensor;
  const Descriptor& NewTensor(const Tensor& tensor);
  const Descriptor& NewTransposed(Tensor tensor);
  Tensor RowsOf(Uid uid, int64_t H, int64_t N, int64_t D, const DnnRows& rows) const;
  Tensor FloatsOf(Uid uid, int64_t columns, int64_t head) const;
  Tensor VirtualOf(cudnnDataType_t type, int64_t columns);

  const Functions& functions_;
  const DnnAttend& attend_;
  std::vector<std::unique_ptr<Descriptor>> parts_;
  int64_t last_id_ = static_cast<int64_t>(Uid::kBefore);
};

}  // namespace attnd::cuda::dnn
