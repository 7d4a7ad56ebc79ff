# Address and undefined-behaviour sanitizers, for every GoogleTest suite and the real server.
# AVX-512, for which few kernels have separate code, is left out to save time; it builds without
# -DATTND_NO_AVX512, too. The excluded checks of undefined behaviour find only what the address
# sanitizer finds anyway; with them, or at -O2, the unrolled kernels compile for minutes each.
set(CMAKE_BUILD_TYPE Sanitized CACHE STRING "")
set(CMAKE_CXX_FLAGS "-O1 -g1 -fno-omit-frame-pointer -DATTND_NO_AVX512 -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow -fno-sanitize-recover=all" CACHE STRING "")
set(ATTND_CUDA OFF CACHE STRING "")
# A test that takes a second takes twenty here.
set(ATTND_TEST_SECONDS 900 CACHE STRING "")
# Without precompiled headers, so that a file with a missing include fails to compile.
set(ATTND_PRECOMPILED OFF CACHE BOOL "")
