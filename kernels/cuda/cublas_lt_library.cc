#include <dlfcn.h>

#include "kernels/cuda/cublas_lt_api.h"

namespace attnd::cuda::lt {

void* FindFunction(const char* name) {
  static void* const library = [] {
    void* const of_this_version = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    return of_this_version != nullptr ? of_this_version
                                      : dlopen("libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace attnd::cuda::lt
