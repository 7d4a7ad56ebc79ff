# Thread sanitizer, for the kernels, the batcher, the lanes and, with tests/server/tsan.supp, the
# transport: libraries without instrumentation (gRPC) cause reports of races that do not exist.
# Threads interact in the same way in all instruction sets, so one is enough.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(CMAKE_CXX_FLAGS "-fsanitize=thread -g1 -DATTND_NO_AVX512" CACHE STRING "")
# Shared libraries, so that reports from inside gRPC name its library (tests/server/tsan.supp).
set(ATTND_ARCHIVES OFF CACHE BOOL "")
# A test that takes a second takes twenty here.
set(ATTND_TEST_SECONDS 900 CACHE STRING "")
set(ATTND_CUDA OFF CACHE STRING "")
set(ATTND_TEST_ONE_ISA ON CACHE BOOL "")
set(ATTND_TEST_THREADS_ONLY ON CACHE BOOL "")
# Without precompiled headers, so that a file with a missing include fails to compile.
set(ATTND_PRECOMPILED OFF CACHE BOOL "")
