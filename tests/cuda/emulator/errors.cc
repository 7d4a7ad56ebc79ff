// Names and texts of errors.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

namespace {

struct Words {
  cudaError_t error;
  const char *name, *text;
};

constexpr Words kWords[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const Words* Find(cudaError_t error) {
  const Words* end = std::end(kWords);
  const Words* found =
      std::find_if(kWords, end, [&](const Words& words) { return words.error == error; });
  return found == end ? nullptr : found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const Words* words = Find(error);
  return words == nullptr ? "unrecognized error code" : words->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const Words* words = Find(error);
  return words == nullptr ? "unrecognized error code" : words->text;
}
