# kernels/cuda compiled by g++ over the emulator, which stands in for the CUDA runtime: its tests,
# plain and sanitized, the C interface and the server on it.
file(GLOB cuda_wheels ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/include)
find_path(CUDA_HEADERS cuda_runtime_api.h PATHS /usr/local/cuda/include ${cuda_wheels})
if(NOT CUDA_HEADERS)
  message(STATUS "No headers of CUDA: the tests of kernels/cuda are not built")
  return()
endif()

file(GLOB cuda_host_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cc ${PROJECT_SOURCE_DIR}/kernels/cuda/*/*.cc)
# The emulator has libraries of its own.
list(FILTER cuda_host_sources EXCLUDE REGEX "/library_file\\.cc$")
file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/*/*.cu)
file(GLOB emulator_sources CONFIGURE_DEPENDS cuda/emulator/*.cc)
set_source_files_properties(${cuda_kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")

# Objects, so that they come before those of attnd_kernels. Kernels pun types: registers of a matrix
# product hold pairs of 16-bit elements.
function(add_emulated target)
  add_library(${target} OBJECT ${emulator_sources} ${cuda_host_sources} ${cuda_kernel_sources})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator)
  target_include_directories(${target} SYSTEM PUBLIC ${CUDA_HEADERS})
  target_compile_options(${target} PUBLIC -fno-strict-aliasing -Wno-unknown-pragmas ${ARGN})
  target_link_options(${target} PUBLIC ${ARGN})
  target_link_libraries(${target} PUBLIC attnd_compiler)
endfunction()

# Tests of primitives that are written for the processor run on the device, too (cpus_cuda.cc). They
# are the same in all builds: the sanitizers watch the kernels.
file(GLOB primitive_tests CONFIGURE_DEPENDS cpu/*_case.cc cpu/*_test.cc plain/*.cc)
list(FILTER primitive_tests EXCLUDE REGEX
  "/(cpus|cpu_device_test|attend_math_test|thread_pool_test|thread_pool_jobs_test|far_strides_test)\\.cc$")
file(GLOB cuda_test_sources CONFIGURE_DEPENDS cuda/*.cc cuda/costs/*_test.cc)
list(FILTER cuda_test_sources EXCLUDE REGEX "/(cuda_devices|planned_device)\\.cc$")
add_library(primitive_tests OBJECT ${primitive_tests})
target_link_libraries(primitive_tests PRIVATE attnd_kernels attnd_compiler GTest::gmock)
precompile(primitive_tests std absl gtest)

# In place of the management library of the driver.
add_library(fake_nvml SHARED cuda/nvml/fake_nvml.cc)
set_target_properties(fake_nvml PROPERTIES PREFIX "" OUTPUT_NAME libnvidia-ml SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_nvml)
set_source_files_properties(cuda/nvml_test.cc PROPERTIES
  COMPILE_DEFINITIONS FAKE_NVML="$<TARGET_FILE:fake_nvml>")

function(add_cuda_tests name emulated)
  add_executable(${name} ${cuda_test_sources} $<TARGET_OBJECTS:primitive_tests>)
  target_link_libraries(${name}
    PRIVATE ${emulated} attnd_kernels attnd_compiler hwy GTest::gmock_main)
  add_dependencies(${name} fake_nvml)
  set(ATTND_TEST_SECONDS 1800)  # the self-test under a sanitizer, on a machine that does other things
  add_tests(${name} ${name})
endfunction()
add_emulated(attnd_cuda_emulated)
add_cuda_tests(cuda_tests attnd_cuda_emulated)
# What plans cost on this device; a program of its own, like plan_tests.
set(cuda_plan_sources ${plan_test_sources} cuda/planned_device.cc)
list(FILTER cuda_plan_sources EXCLUDE REGEX "/processor\\.cc$")
add_executable(cuda_plan_tests ${cuda_plan_sources})
target_link_libraries(cuda_plan_tests
  PRIVATE attnd_cuda_emulated attnd_kernels attnd_compiler GTest::gmock_main)
add_tests(cuda_plan_tests cuda_tests)
add_emulated(attnd_cuda_asan -fsanitize=address,undefined -fno-sanitize-recover=all -g1 -O1)
add_cuda_tests(cuda_asan_tests attnd_cuda_asan)
add_emulated(attnd_cuda_tsan -fsanitize=thread -g1 -O1)
add_cuda_tests(cuda_tsan_tests attnd_cuda_tsan)

# What the emulator counts of kernels, as a table (tests/bench/README.md). Kernels call a function for
# each access of memory, as for the thread sanitizer, but one of tests/cuda/costs: nothing links the
# sanitizer. Without scalar replacement a vector is loaded as a whole, as on the device; without the
# other two passes lanes that part keep one call for one line. Each basic block calls a function, too,
# and holds an instruction for each operation: none of vectors, one for a product with a sum, as nvcc
# makes it.
set_source_files_properties(cuda/costs/known_kernel.cu PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
function(add_counted target)
  cmake_parse_arguments(ARG "" "" "SOURCES;OPTIONS" ${ARGN})
  add_library(${target} OBJECT ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator)
  target_include_directories(${target} SYSTEM PRIVATE ${CUDA_HEADERS})
  target_compile_options(${target} PRIVATE -fno-strict-aliasing -Wno-unknown-pragmas -g1 -fsanitize=thread
    -fno-tree-sra -fno-tree-pre -fno-thread-jumps "SHELL:--param tsan-instrument-func-entry-exit=0"
    -fsanitize-coverage=trace-pc -fno-tree-vectorize -mfma ${ARG_OPTIONS})
  target_link_libraries(${target} PRIVATE attnd_compiler)
endfunction()
# What a call returns goes to memory unseen: here results that are converted to 16 bits, if that is
# not inlined.
set(inlined_kernels ${cuda_kernel_sources})
list(FILTER inlined_kernels INCLUDE REGEX "/(matmul|attend|attend_grad|attend_grad_bf16|attend_grad_f16)\\.cu$")
add_counted(attnd_cuda_counted_inlined SOURCES ${inlined_kernels}
  OPTIONS -finline-limit=20000 "SHELL:--param max-inline-insns-single=20000" "SHELL:--param inline-unit-growth=1000"
  "SHELL:--param large-function-growth=10000")
set(other_kernels ${cuda_kernel_sources})
list(REMOVE_ITEM other_kernels ${inlined_kernels})
add_counted(attnd_cuda_counted SOURCES ${other_kernels} cuda/costs/known_kernel.cu)
file(GLOB cuda_cost_sources CONFIGURE_DEPENDS cuda/costs/*.cc)
list(FILTER cuda_cost_sources EXCLUDE REGEX "_test[.]cc$")
add_executable(cuda_costs ${cuda_cost_sources} cuda/cpus_cuda.cc cuda/on_host.cc
  $<FILTER:$<TARGET_OBJECTS:attnd_cuda_emulated>,EXCLUDE,[.]cu[.]o$> $<TARGET_OBJECTS:attnd_cuda_counted>
  $<TARGET_OBJECTS:attnd_cuda_counted_inlined>
  $<TARGET_OBJECTS:primitive_tests>)
target_include_directories(cuda_costs PRIVATE ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator)
target_include_directories(cuda_costs SYSTEM PRIVATE ${CUDA_HEADERS})
target_link_libraries(cuda_costs PRIVATE attnd_kernels attnd_compiler hwy GTest::gmock)

# The C interface and the server on the emulated device.
add_library(attnd_c_cuda SHARED ${PROJECT_SOURCE_DIR}/kernels/engine/c_api.cc cuda/cuda_devices.cc)
target_link_libraries(attnd_c_cuda PRIVATE attnd_cuda_emulated attnd_c_needs)
if(ATTND_SERVER)
  add_executable(attnd-server-cuda ${PROJECT_SOURCE_DIR}/server/main.cc)
  target_link_libraries(attnd-server-cuda PRIVATE attnd_cuda_emulated attnd_server_lib attnd_compiler)
  add_dependencies(attnd-server-cuda fake_nvml)
endif()

# Built where they are asked for (tests/run cuda, cuda-sanitized).
set(emulated_targets attnd_cuda_emulated attnd_cuda_asan attnd_cuda_tsan attnd_cuda_counted attnd_cuda_counted_inlined cuda_costs cuda_tests cuda_plan_tests cuda_asan_tests cuda_tsan_tests
  primitive_tests fake_nvml attnd_c_cuda)
if(ATTND_SERVER)
  list(APPEND emulated_targets attnd-server-cuda)
endif()
set_target_properties(${emulated_targets} PROPERTIES EXCLUDE_FROM_ALL ON)
