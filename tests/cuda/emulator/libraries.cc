#include "libraries.h"

#include "kernels/cuda/library.h"

void* attnd::cuda::FindFunction(const LibraryFacts& library, const char* name) {
  const struct {
    std::string_view name;
    void* (*find)(std::string_view);
  } all[] = {
      {"cuBLASLt", emu::FindInCublasLt}, {"cuDNN", emu::FindInCudnn}, {"cuFFT", emu::FindInCufft}};
  for (const auto& entry : all) {
    if (entry.name == library.name) return entry.find(name);
  }
  return nullptr;
}
