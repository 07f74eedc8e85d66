# jemalloc as a static library: jemalloc::jemalloc. Programs that link it allocate through it, the plugins that they load among them.
find_library(Jemalloc_LIBRARY NAMES libjemalloc_pic.a)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Jemalloc REQUIRED_VARS Jemalloc_LIBRARY)
if(Jemalloc_FOUND AND NOT TARGET jemalloc::jemalloc)
  add_library(jemalloc::jemalloc STATIC IMPORTED)
  set_target_properties(jemalloc::jemalloc PROPERTIES
    IMPORTED_LOCATION ${Jemalloc_LIBRARY}
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
endif()
