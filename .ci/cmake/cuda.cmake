# Adds kernels/cuda to attnd_kernels, compiled by nvcc.
# sm_80 and Hopper in machine code, and PTX for what comes after them: that of sm_80, whose
# instructions are all that kernels use. PTX of sm_90 would be a third compilation of every kernel.
set(ATTND_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "As CMAKE_CUDA_ARCHITECTURES")
set(CMAKE_CUDA_ARCHITECTURES ${ATTND_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
enable_language(CUDA)
# The standard is among the options below: CMake 3.25 does not know that this compiler has it, and
# would take its own from that of C++.
set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
find_package(CUDAToolkit 13 REQUIRED)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cc cuda/*/*.cc cuda/*.cu cuda/*/*.cu)
# Objects: in an archive of their own they and attnd_kernels would need each other.
add_library(attnd_cuda OBJECT ${cuda_sources})
target_include_directories(attnd_cuda PUBLIC ${ATTND_ROOT})
# The options of attnd_compiler are g++'s. 2810: an assignment of a [[nodiscard]] class counts as
# ignored for nvcc; g++ checks the same files for the emulator. tests/cuda/check_code.py reads
# registers and stacks from the objects.
target_compile_options(attnd_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-Werror=all-warnings;--diag-suppress=2810;-Xcompiler=-Wall>)
target_link_libraries(attnd_cuda PUBLIC CUDA::cudart_static)
target_sources(attnd_kernels PRIVATE $<TARGET_OBJECTS:attnd_cuda>)
target_link_libraries(attnd_kernels PUBLIC CUDA::cudart_static)
