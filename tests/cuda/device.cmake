# Tests and benchmarks of the CUDA device on a device, for tests/gpu/pack: those that need nothing of
# the emulator, and the emulator's own tests of what it takes from documents (fragments, collectives).
file(GLOB cuda_device_test_sources CONFIGURE_DEPENDS
  cuda/*_cuda_test.cc cuda/cuda_device_test.cc cuda/cpus_cuda.cc cuda/on_host.cc cpu/*_case.cc cpu/*_test.cc plain/*.cc)
list(FILTER cuda_device_test_sources EXCLUDE REGEX
  "/(row_sizes_cuda_test|cpus|cpu_device_test|attend_math_test|thread_pool_test|thread_pool_jobs_test|far_strides_test)\\.cc$")
set(cuda_device_kernels cuda/emulator_test.cc cuda/emulator_layout_test.cc cuda/emulator_intrinsics_test.cc)
set_source_files_properties(${cuda_device_kernels} PROPERTIES LANGUAGE CUDA)
add_executable(cuda_device_tests ${cuda_device_test_sources} ${cuda_device_kernels})
set_target_properties(cuda_device_tests PROPERTIES CUDA_ARCHITECTURES "80-real;90a-real;90-virtual")
target_compile_definitions(cuda_device_tests PRIVATE ATTND_TESTS_ON_DEVICE)
target_compile_options(cuda_device_tests PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;--diag-suppress=2810>)
target_link_libraries(cuda_device_tests PRIVATE attnd_kernels hwy GTest::gmock_main)

add_executable(cuda_bench gpu/cuda_bench.cc)
target_link_libraries(cuda_bench PRIVATE attnd_kernels attnd_compiler)
