# Whether the build has CUDA devices: enables the language CUDA, or says why not. Included where the
# project begins, since a language is known to the folder that enables it and those below.
set(ATTND_CUDA AUTO CACHE STRING "Build for CUDA devices: ON, OFF, or AUTO: where nvcc 13 is found")
set_property(CACHE ATTND_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT ATTND_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ATTND_CUDA must be AUTO, ON or OFF, got ${ATTND_CUDA}")
endif()
if(ATTND_CUDA STREQUAL "OFF")
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  # CMake 3.25 deprecates a library without asking whether it is there; CUDA 13 does not have it.
  if(NOT TARGET CUDA::nvToolsExt)
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  find_package(CUDAToolkit 13 QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(why_not_cuda "${CMAKE_CUDA_COMPILER} is not of CUDA 13")
  endif()
else()
  set(why_not_cuda "there is no nvcc in PATH, CUDACXX or CMAKE_CUDA_COMPILER")
endif()
if(why_not_cuda AND ATTND_CUDA STREQUAL "ON")
  message(FATAL_ERROR "ATTND_CUDA=ON: ${why_not_cuda}")
elseif(why_not_cuda)
  message(STATUS "No CUDA devices: ${why_not_cuda}")
  return()
endif()

# Kernels use instructions of sm_80 alone: their PTX is compiled once, machine code for sm_80 and
# Hopper is made from it, and the driver makes that for what comes after them.
set(ATTND_CUDA_MACHINES "sm_80,sm_90a" CACHE STRING "Machines that get code of their own, from PTX of sm_80")
set(CMAKE_CUDA_ARCHITECTURES OFF)
string(APPEND CMAKE_CUDA_FLAGS
  " \"--generate-code=arch=compute_80,code=[compute_80,${ATTND_CUDA_MACHINES}]\"")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
enable_language(CUDA)
# The standard is among the options of targets: CMake 3.25 does not know that this compiler has it,
# and would take its own from that of C++.
set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
