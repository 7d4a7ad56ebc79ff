# Flags of all targets of this project: C++20, warnings as errors, no flag that changes arithmetic.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Without NDEBUG: asserts check contracts between layers, outside of inner loops.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
find_program(CCACHE ccache)
if(CCACHE)
  # ccache needs the first to cache objects that use precompiled headers. With the rest, objects
  # serve checkouts in other folders, too, and the containers' (tests/containers/run).
  get_filename_component(attnd_folder ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=locale,pch_defines,time_macros CCACHE_BASEDIR=${attnd_folder} ${CCACHE})
endif()

add_library(attnd_compiler INTERFACE)
target_compile_options(attnd_compiler INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers)

include(${CMAKE_CURRENT_LIST_DIR}/precompiled.cmake)
