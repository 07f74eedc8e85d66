# Build options and the flags that every target shares.
option(MINKA_BUILD_TESTS "Build the tests" ON)
option(MINKA_BUILD_BENCHMARKS "Build the benchmarks" ON)
option(MINKA_PYTHON "Build the Python package's extension module; MINKA_PYTHON_VENV has nanobind" OFF)
option(MINKA_BUILD_FUZZERS "Build the fuzz targets (clang only)" OFF)
option(MINKA_PRECOMPILE "Read the headers that most tests include once for all of them, under sanitizers those of most other sources, too" OFF)
# ccache keeps what includes a precompiled header only with these; -pthread because what links gRPC has it, and all flags have to be
# equal.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(MINKA_PCH_FLAGS -pthread -fpch-preprocess)
else()
  set(MINKA_PCH_FLAGS -pthread "SHELL:-Xclang -fno-pch-timestamp")
endif()
set(MINKA_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

add_library(minka_flags INTERFACE)
target_compile_options(minka_flags INTERFACE $<BUILD_INTERFACE:-Wall;-Wextra;-Wno-missing-field-initializers>)
# What includes the installed headers needs the standard too; here CMAKE_CXX_STANDARD says it.
target_compile_features(minka_flags INTERFACE $<INSTALL_INTERFACE:cxx_std_20>)
# g++ 12 sees overlapping copies in std::string's own code once it optimises (GCC bug 105329).
target_compile_options(minka_flags INTERFACE
  $<BUILD_INTERFACE:$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>>)
target_include_directories(minka_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>
  $<INSTALL_INTERFACE:include>)

if(MINKA_SANITIZE)
  add_compile_options(-fsanitize=${MINKA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(MINKA_SANITIZE MATCHES address)
    # Checks at each access by a pointer, a third of what it takes to compile. The address sanitizer sees where such an access leaves its
    # object; nothing is cast down, and bytes are cast to wider types only at the start of a mapped page.
    add_compile_options(-fno-sanitize=null,alignment,object-size,pointer-overflow,vptr)
  endif()
  add_link_options(-fsanitize=${MINKA_SANITIZE})
endif()

find_program(MINKA_CCACHE ccache)
if(MINKA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MINKA_CCACHE})
endif()
find_program(MINKA_MOLD mold)
if(MINKA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
