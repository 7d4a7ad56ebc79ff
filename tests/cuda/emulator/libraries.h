// The stand-ins for libraries that kernels/cuda loads at run time.
#pragma once

#include <string_view>

namespace emu {

// A function of a stand-in by its name. Null: it is absent, or has none.
void* FindInCublasLt(std::string_view name);
void* FindInCufft(std::string_view name);
void* FindInCudnn(std::string_view name);

}  // namespace emu
