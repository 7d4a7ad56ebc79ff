# Adds kernels/cuda to attnd_kernels, compiled by nvcc.
find_package(CUDAToolkit 13 REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cc cuda/*/*.cc cuda/*.cu cuda/*/*.cu)
# Objects: in an archive of their own they and attnd_kernels would need each other.
add_library(attnd_cuda OBJECT ${cuda_sources})
target_include_directories(attnd_cuda PUBLIC ${ATTND_ROOT})
# The options of attnd_compiler are g++'s. 2810: an assignment of a [[nodiscard]] class counts as
# ignored for nvcc; g++ checks the same files for the emulator. tests/cuda/check_code.py reads
# registers and stacks from the objects. Programs hold code for each architecture, a fifth of the
# bytes in the smallest form.
target_compile_options(attnd_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-Werror=all-warnings;--diag-suppress=2810;-Xcompiler=-Wall;--compress-mode=size>)
target_link_libraries(attnd_cuda PUBLIC CUDA::cudart_static)
target_sources(attnd_kernels PRIVATE $<TARGET_OBJECTS:attnd_cuda>)
target_link_libraries(attnd_kernels PUBLIC CUDA::cudart_static)
