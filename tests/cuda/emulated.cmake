# kernels/cuda compiled by g++ over the emulator, which stands in for the CUDA runtime: its tests, the
# C interface and the server on it.
find_path(CUDA_HEADERS cuda_runtime_api.h PATHS /usr/local/cuda/include ENV CUDA_PATH PATH_SUFFIXES include)
if(NOT CUDA_HEADERS)
  message(STATUS "No headers of CUDA: the tests of kernels/cuda are not built")
  return()
endif()

file(GLOB cuda_host_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cc ${PROJECT_SOURCE_DIR}/kernels/cuda/*/*.cc)
file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/*/*.cu)
file(GLOB emulator_sources CONFIGURE_DEPENDS cuda/emulator/*.cc)
set_source_files_properties(${cuda_kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")

# Objects, so that they come before those of attnd_kernels. Kernels pun types: registers of a matrix
# product hold pairs of 16-bit elements.
add_library(attnd_cuda_emulated OBJECT ${emulator_sources} ${cuda_host_sources} ${cuda_kernel_sources})
target_include_directories(attnd_cuda_emulated PUBLIC ${PROJECT_SOURCE_DIR} cuda/emulator)
target_include_directories(attnd_cuda_emulated SYSTEM PUBLIC ${CUDA_HEADERS})
target_compile_options(attnd_cuda_emulated PUBLIC -fno-strict-aliasing -Wno-unknown-pragmas)
target_link_libraries(attnd_cuda_emulated PUBLIC attnd_compiler)

# Tests of primitives that are written for the processor run on the device, too (cpus_cuda.cc).
file(GLOB cuda_test_sources CONFIGURE_DEPENDS
  cuda/*.cc cpu/*_case.cc cpu/*_test.cc plain/*.cc)
list(FILTER cuda_test_sources EXCLUDE REGEX
  "/(cuda_devices|cpus|thread_pool_test|thread_pool_jobs_test|attend_math_test|far_strides_test)\\.cc$")
add_executable(cuda_tests ${cuda_test_sources})
target_link_libraries(cuda_tests
  PRIVATE attnd_cuda_emulated attnd_kernels attnd_compiler hwy GTest::gmock_main)
precompile(cuda_tests std absl gtest)
add_tests(cuda_tests cuda)

# The C interface and the server on the emulated device.
set(cuda_devices_sources ${CMAKE_CURRENT_SOURCE_DIR}/cuda/cuda_devices.cc)
add_library(attnd_c_cuda SHARED ${PROJECT_SOURCE_DIR}/kernels/engine/c_api.cc ${cuda_devices_sources})
target_link_libraries(attnd_c_cuda PRIVATE attnd_cuda_emulated attnd_c_needs)
if(ATTND_SERVER)
  add_executable(attnd-server-cuda ${PROJECT_SOURCE_DIR}/server/main.cc)
  target_link_libraries(attnd-server-cuda PRIVATE attnd_cuda_emulated attnd_server_lib attnd_compiler)
endif()
