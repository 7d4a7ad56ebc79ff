# gRPC, protobuf and Abseil are linked into the binaries: calls inside and between them then need
# neither the PLT nor __tls_get_addr, which takes a fourth off the CPU time of a small request.
# Libraries with separate security updates (OpenSSL, zlib, c-ares) stay shared. Either all three are
# linked statically or none: a process must not have two copies of one of them.
set(links_archives ${ATTND_ARCHIVES})
foreach(name IN ITEMS grpc++ protobuf absl_base)
  find_library(archive_of_${name} lib${name}.a)
  if(links_archives AND NOT archive_of_${name})
    message(STATUS "There is no lib${name}.a: linking shared libraries of gRPC, protobuf and Abseil")
    set(links_archives OFF)
  endif()
endforeach()
set(Protobuf_USE_STATIC_LIBS ${links_archives})

# Lets the imported targets of this directory whose names match `pattern` link their archives.
function(link_archives pattern)
  if(NOT links_archives)
    return()
  endif()
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER targets INCLUDE REGEX "${pattern}")
  foreach(target IN LISTS targets)
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    foreach(configuration IN LISTS configurations)
      set(property IMPORTED_LOCATION_${configuration})
      get_target_property(shared ${target} ${property})
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${shared}")
      # Plug-ins have no archives; nothing here links them.
      if(EXISTS "${archive}")
        set_target_properties(${target} PROPERTIES ${property} "${archive}")
      endif()
    endforeach()
  endforeach()
endfunction()
