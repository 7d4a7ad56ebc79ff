#include <dlfcn.h>

#include "kernels/cuda/library.h"

namespace attnd::cuda {

void* FindFunction(const LibraryFacts& library, const char* name) {
  // One that is loaded is found again at once.
  void* file = dlopen(library.file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (file == nullptr) file = dlopen(library.other, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return file == nullptr ? nullptr : dlsym(file, name);
}

}  // namespace attnd::cuda
