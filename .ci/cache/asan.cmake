# Address and undefined-behaviour sanitizers, for every GoogleTest suite and the real server. One
# wide instruction set is enough: all are compiled from the same source.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(CMAKE_CXX_FLAGS "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -DATTND_NO_AVX512" CACHE STRING "")
