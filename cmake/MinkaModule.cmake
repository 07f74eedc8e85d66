# minka_module(NAME name SOURCES a.cc ... DEPS minka_base ... [LIBS fmt::fmt ...]
#              [TESTS a_test.cc ...] [PLUGIN_TESTS b_test.cc ...] [TEST_DEPS ...] [TEST_LIBS ...])
#
# One folder of minka/ as the static library minka_<name>. DEPS are other modules of minka, which the include-direction check
# compares with ARCHITECTURE.md; LIBS come from outside. TESTS are one program <name>_test; those that load a PJRT plugin are
# PLUGIN_TESTS, one program <name>_plugin_test, which the sanitizer presets leave out.
function(minka_module)
  cmake_parse_arguments(M "" "NAME" "SOURCES;DEPS;LIBS;TESTS;PLUGIN_TESTS;TEST_DEPS;TEST_LIBS" ${ARGN})
  set(target minka_${M_NAME})
  if(M_SOURCES)
    add_library(${target} STATIC ${M_SOURCES})
    target_link_libraries(${target} PUBLIC minka_flags ${M_DEPS} ${M_LIBS})
    minka_precompile(${target})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE minka_flags ${M_DEPS} ${M_LIBS})
  endif()
  add_library(minka::${M_NAME} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY MINKA_MODULES ${target})
  if(M_TESTS)
    minka_test_program(NAME ${M_NAME}_test SOURCES ${M_TESTS} DEPS ${target} ${M_TEST_DEPS} ${M_TEST_LIBS})
    minka_test(NAME ${M_NAME}_test)
  endif()
  if(M_PLUGIN_TESTS)
    minka_test_program(NAME ${M_NAME}_plugin_test SOURCES ${M_PLUGIN_TESTS} DEPS ${target} ${M_TEST_DEPS} ${M_TEST_LIBS})
    minka_test(NAME ${M_NAME}_plugin_test PLUGIN FAST_CODEGEN)
  endif()
endfunction()

# minka_precompile(TARGET): a library, or a program that is no test, takes the headers that most of them include as they were read once.
# Under sanitizers alone, which build no benchmarks: a wheel takes from ccache what preset release compiled, which it does not find by a precompiled header of its own.
function(minka_precompile target)
  if(NOT MINKA_PRECOMPILE OR NOT MINKA_SANITIZE)
    return()
  endif()
  if(NOT TARGET minka_headers)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/minka_headers.cc CONTENT "")
    add_library(minka_headers OBJECT ${CMAKE_BINARY_DIR}/minka_headers.cc)
    set_target_properties(minka_headers PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(minka_headers PRIVATE minka_flags absl::statusor fmt::fmt)
    target_compile_options(minka_headers PRIVATE ${MINKA_PCH_FLAGS})
    # Not JSON's and CLI11's, which few include: with them all that was compiled took a fifth longer, without a tenth less.
    target_precompile_headers(minka_headers PRIVATE
      <algorithm> <array> <cmath> <cstdint> <functional> <map> <memory> <numeric> <optional> <set> <span> <string> <string_view> <utility>
      <variant> <vector> <absl/status/statusor.h> <fmt/format.h>)
  endif()
  target_compile_options(${target} PRIVATE ${MINKA_PCH_FLAGS})
  target_precompile_headers(${target} REUSE_FROM minka_headers)
endfunction()

# A quarter less to compile than at -O2. Not -O0: the linker takes a test's copies of templates for all of its program.
set(MINKA_TEST_FLAGS $<$<CONFIG:Release>:-O1> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)

# minka_test_program(NAME x_test SOURCES x_test.cc ... DEPS minka_ir ...): a program of gtest cases.
function(minka_test_program)
  if(NOT MINKA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(P "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${P_NAME} ${P_SOURCES})
  # Programs and precompiled headers need the same flags: programs would get -fPIE, libraries -fPIC.
  set_target_properties(${P_NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(${P_NAME} PRIVATE ${P_DEPS} GTest::gmock GTest::gtest_main fmt::fmt)
  target_compile_options(${P_NAME} PRIVATE ${MINKA_TEST_FLAGS})
  if(MINKA_PRECOMPILE)
    minka_test_headers()
    target_compile_options(${P_NAME} PRIVATE ${MINKA_PCH_FLAGS})
    target_precompile_headers(${P_NAME} REUSE_FROM minka_test_headers)
  endif()
  target_compile_definitions(${P_NAME} PRIVATE MINKA_TESTDATA="${CMAKE_CURRENT_SOURCE_DIR}/testdata")
endfunction()

# The headers that nearly every test includes are read once for all of them.
function(minka_test_headers)
  if(TARGET minka_test_headers)
    return()
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/minka_test_headers.cc CONTENT "")
  add_library(minka_test_headers OBJECT ${CMAKE_BINARY_DIR}/minka_test_headers.cc)
  set_target_properties(minka_test_headers PROPERTIES UNITY_BUILD OFF POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(minka_test_headers PRIVATE minka_flags GTest::gmock absl::statusor fmt::fmt)
  target_compile_options(minka_test_headers PRIVATE ${MINKA_TEST_FLAGS} ${MINKA_PCH_FLAGS})
  target_precompile_headers(minka_test_headers PRIVATE
    <algorithm> <cmath> <filesystem> <functional> <map> <memory> <optional> <random> <set> <string> <unordered_map> <vector>
    <gmock/gmock.h> <gtest/gtest.h> <absl/status/statusor.h> <fmt/format.h>)
endfunction()

# What makes XLA:CPU write machine code fast rather than fast machine code; its passes over HLO stay as they are. A training
# step of a small GPT compiles in a quarter of the time. Without LLVM's fast selection of instructions, which folds the load of one float
# into AVX's vblendvps: that reads 16 bytes, and behind an array at the end of what is mapped it ends the process.
set(MINKA_FAST_CODEGEN
  "XLA_FLAGS=--xla_backend_optimization_level=0 --xla_backend_extra_options=-fast-isel=false --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# minka_test(NAME name [PROGRAM target] [ARGS ...] [PLUGIN] [FAST_CODEGEN] [PARTS n | SANITIZED_PARTS n] [SECONDS s] [TIMEOUT s] [ENVIRONMENT X=1 ...])
#
# What ctest runs: the program of that name, or PROGRAM, with ARGS. Without PLUGIN it also runs under sanitizers. With PARTS, or under
# sanitizers with SANITIZED_PARTS, one of so many parts of its cases, another with every commit (scripts/run_test_part.sh). SECONDS is
# about how long it takes on one of two busy cores; ctest begins with the longest.
function(minka_test)
  if(NOT MINKA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(T "PLUGIN;FAST_CODEGEN" "NAME;PROGRAM;PARTS;SANITIZED_PARTS;SECONDS;TIMEOUT" "ARGS;ENVIRONMENT" ${ARGN})
  if(NOT T_PROGRAM)
    set(T_PROGRAM ${T_NAME})
  endif()
  if(MINKA_SANITIZE AND T_SANITIZED_PARTS)
    set(T_PARTS ${T_SANITIZED_PARTS})
  endif()
  if(T_PARTS)
    add_test(NAME ${T_NAME}
      COMMAND ${PROJECT_SOURCE_DIR}/scripts/run_test_part.sh ${T_PARTS} $<TARGET_FILE:${T_PROGRAM}> ${T_ARGS})
  else()
    add_test(NAME ${T_NAME} COMMAND ${T_PROGRAM} ${T_ARGS})
  endif()
  if(T_PLUGIN)
    set_tests_properties(${T_NAME} PROPERTIES LABELS plugin)
  else()
    set_tests_properties(${T_NAME} PROPERTIES LABELS without_plugin)
    set_property(GLOBAL APPEND PROPERTY MINKA_TESTS_WITHOUT_PLUGIN ${T_PROGRAM})
  endif()
  if(T_SECONDS)
    set_tests_properties(${T_NAME} PROPERTIES COST ${T_SECONDS})
  endif()
  if(T_TIMEOUT)
    set_tests_properties(${T_NAME} PROPERTIES TIMEOUT ${T_TIMEOUT})
  endif()
  if(T_FAST_CODEGEN)
    list(APPEND T_ENVIRONMENT ${MINKA_FAST_CODEGEN})
  endif()
  if(MINKA_SANITIZE)
    # UCX writes into the code of mmap() as soon as it is loaded, and breaks that of the sanitizers.
    list(APPEND T_ENVIRONMENT UCX_MEM_EVENTS=n)
    # Allocating takes a third of a test's time: shorter stacks and a quarantine that fits into a cache.
    list(APPEND T_ENVIRONMENT ASAN_OPTIONS=malloc_context_size=5:quarantine_size_mb=16)
  endif()
  if(T_ENVIRONMENT)
    set_tests_properties(${T_NAME} PROPERTIES ENVIRONMENT "${T_ENVIRONMENT}")
  endif()
endfunction()

# minka_fuzzer(NAME x_fuzzer SOURCES x_fuzzer.cc DEPS minka_ir ...)
#
# A libFuzzer target, built by preset asan only; its seeds lie in testdata/x_fuzzer_corpus/ beside its source.
function(minka_fuzzer)
  if(NOT MINKA_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(F "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${F_NAME} ${F_SOURCES})
  target_link_libraries(${F_NAME} PRIVATE ${F_DEPS})
  target_link_options(${F_NAME} PRIVATE -fsanitize=fuzzer)
  set_property(GLOBAL APPEND PROPERTY MINKA_FUZZERS ${F_NAME})
endfunction()

# minka_benchmark(NAME x_benchmark SOURCES x_benchmark.cc DEPS minka_solver ... [LIBS ...] [ARGS ...])
#
# A program that makes a table as benchmarks/support/table.h says; `make bench` runs it with ARGS in the repository's root,
# `make bench-compare` with --compare, too.
function(minka_benchmark)
  if(NOT MINKA_BUILD_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(B "" "NAME" "SOURCES;DEPS;LIBS;ARGS" ${ARGN})
  add_executable(${B_NAME} ${B_SOURCES})
  target_link_libraries(${B_NAME} PRIVATE ${B_DEPS} ${B_LIBS})
  add_custom_target(run_${B_NAME} COMMAND ${B_NAME} ${B_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL)
  # Ninja runs what uses the terminal one by one; one that fails does not keep the others from running (-k 0).
  add_custom_target(compare_${B_NAME} COMMAND ${B_NAME} --compare ${B_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL)
  set_property(GLOBAL APPEND PROPERTY MINKA_BENCHMARKS ${B_NAME})
endfunction()

# The targets that gather what the modules above have registered; called once, last.
function(minka_summary_targets)
  get_property(tests GLOBAL PROPERTY MINKA_TESTS_WITHOUT_PLUGIN)
  list(REMOVE_DUPLICATES tests)
  add_custom_target(tests_without_plugin DEPENDS ${tests})
  get_property(fuzzers GLOBAL PROPERTY MINKA_FUZZERS)
  add_custom_target(fuzzers DEPENDS ${fuzzers})
  add_custom_target(bench)
  add_custom_target(bench-compare)
  get_property(benchmarks GLOBAL PROPERTY MINKA_BENCHMARKS)
  set(previous "")
  foreach(benchmark IN LISTS benchmarks)
    add_dependencies(bench run_${benchmark})
    add_dependencies(bench-compare compare_${benchmark})
    # One after the other: they measure time.
    if(previous)
      add_dependencies(run_${benchmark} run_${previous})
    endif()
    set(previous ${benchmark})
  endforeach()
endfunction()
