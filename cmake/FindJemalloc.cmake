# jemalloc as a static library, Jemalloc_LIBRARY.
find_library(Jemalloc_LIBRARY NAMES libjemalloc_pic.a)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Jemalloc REQUIRED_VARS Jemalloc_LIBRARY)
