// Attention as cuDNN's descriptors say it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_api.h"

namespace attnd::cuda::dnn {

// The tensors of the graph; the order is that of their unique ids, which begin at 1.
enum class Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kScale,        // float, on the host, as all that follow but the scores
  kScores,       // [1,H,Nq,Nk], which exist nowhere
  kRightHidden,  // float: what scores beyond `after` become
  kAfter,        // int32
  kRightScores,  // with the keys beyond `after` hidden
  kLeftHidden,   // float
  kBefore,       // float
  kLeftScores,   // with the keys before `before` hidden, too
};

// A descriptor, which ends with its owner. When one call has failed, further ones do nothing.
class Descriptor {
 public:
  Descriptor(const Functions& functions, cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* elements);
  // Fails where `descriptor` has failed.
  void Set(cudnnBackendAttributeName_t name, const Descriptor& descriptor);
  void Set(cudnnBackendAttributeName_t name, int64_t number);
  bool Finalize();
  // How many of at most `most` elements were written; 0: the library does not tell.
  int64_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
              void* elements) const;
  void Fail(cudnnStatus_t status) { status_ = status; }

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t status() const { return status_; }

 private:
  const Functions& functions_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  cudnnStatus_t status_;
};

// One SDPA operation as a graph. Scores outside of a band are hidden by one or two masks in a graph
// of their own.
class AttendGraph {
 public:
  AttendGraph(const Functions& functions, cudnnHandle_t handle, const DnnAttend& attend);

  bool ok() const { return graph_.ok(); }  // finalized
  const Descriptor& graph() const { return graph_; }

 private:
  Descriptor& NewPart(cudnnBackendDescriptorType_t type);
  Descriptor& NewTensor(Uid uid, cudnnDataType_t type, const std::vector<int64_t>& dims,
                        const std::vector<int64_t>& strides);
  Descriptor& NewScores(Uid uid);
  Descriptor& NewNumber(Uid uid, cudnnDataType_t type);
  void AddRows(cudnnBackendAttributeName_t name, Uid uid, int64_t H, int64_t N, int64_t D,
               const DnnRows& rows);
  void AddMasks();

  const Functions& functions_;
  const DnnAttend& attend_;
  std::vector<std::unique_ptr<Descriptor>> parts_;  // tensors, masks
  Descriptor operation_, masks_, graph_;
};

struct ChosenPlan {
  std::unique_ptr<Descriptor> configuration, plan;  // null: there is none
  int64_t workspace_bytes = 0;
};
// The fastest configuration, by the library's own prediction, that gives the same bits at every
// call. It reads `graph` as long as it lives.
ChosenPlan ChoosePlan(const Functions& functions, cudnnHandle_t handle, const Descriptor& graph,
                      int64_t most_workspace_bytes);

}  // namespace attnd::cuda::dnn
