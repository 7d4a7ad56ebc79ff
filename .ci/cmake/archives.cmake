# gRPC, protobuf and Abseil are linked into the binaries: calls inside and between them then need
# neither the PLT nor __tls_get_addr, which takes a fourth off the CPU time of a small request.
# What has security updates of its own (OpenSSL, zlib, c-ares) stays shared.
set(Protobuf_USE_STATIC_LIBS ${ATTND_ARCHIVES})

# Lets the imported targets of this directory whose names match `pattern` link their archives.
function(link_archives pattern)
  if(NOT ATTND_ARCHIVES)
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
      # A system without archives links as it can.
      if(EXISTS "${archive}")
        set_target_properties(${target} PROPERTIES ${property} "${archive}")
      endif()
    endforeach()
  endforeach()
endfunction()
