# Headers of other projects that most files of a target read, compiled once for all of them: a third
# of the time of a build. Every file still includes what it uses: the sanitizers build without
# (.ci/cache), and fail on a file that does not.
option(ATTND_PRECOMPILED "Precompile headers of other projects" ON)

set(precompiled_std
  <algorithm> <array> <atomic> <bit> <chrono> <cmath> <cstdint> <cstring> <deque> <functional>
  <limits> <map> <memory> <numeric> <optional> <span> <string> <unordered_map> <utility> <variant>
  <vector>)
set(precompiled_absl <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>)
set(precompiled_grpc <grpcpp/grpcpp.h> <grpcpp/generic/async_generic_service.h>)
set(precompiled_gtest <gmock/gmock.h> <gtest/gtest.h>)

# precompile(attnd_kernels std absl)
function(precompile target)
  if(NOT ATTND_PRECOMPILED)
    return()
  endif()
  set(headers "")
  foreach(set IN LISTS ARGN)
    list(APPEND headers ${precompiled_${set}})
  endforeach()
  target_precompile_headers(${target} PRIVATE ${headers})
  # ccache reads the header again where the text includes it.
  target_compile_options(${target} PRIVATE -fpch-preprocess)
endfunction()
