# minka_module(NAME name SOURCES a.cc ... DEPS minka_base ... [LIBS fmt::fmt ...] [TESTS a_test.cc ...] [TEST_DEPS ...])
#
# One folder of minka/ as the static library minka_<name>, and its tests as one program <name>_test. DEPS are other modules
# of minka, which the include-direction check compares with ARCHITECTURE.md; LIBS come from outside.
# Tests whose module loads a PJRT plugin say PLUGIN, so that the sanitizer presets can leave them out.
function(minka_module)
  cmake_parse_arguments(M "PLUGIN" "NAME" "SOURCES;DEPS;LIBS;TESTS;TEST_DEPS;TEST_LIBS" ${ARGN})
  set(target minka_${M_NAME})
  if(M_SOURCES)
    add_library(${target} STATIC ${M_SOURCES})
    target_link_libraries(${target} PUBLIC minka_flags ${M_DEPS} ${M_LIBS})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE minka_flags ${M_DEPS} ${M_LIBS})
  endif()
  add_library(minka::${M_NAME} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY MINKA_MODULES ${target})
  if(M_TESTS AND MINKA_BUILD_TESTS)
    add_executable(${M_NAME}_test ${M_TESTS})
    target_link_libraries(${M_NAME}_test PRIVATE ${target} ${M_TEST_DEPS} ${M_TEST_LIBS} GTest::gmock GTest::gtest_main)
    target_compile_definitions(${M_NAME}_test PRIVATE MINKA_TESTDATA="${CMAKE_CURRENT_SOURCE_DIR}/testdata")
    add_test(NAME ${M_NAME}_test COMMAND ${M_NAME}_test)
    if(M_PLUGIN)
      # One at a time: eight virtual devices on few cores, and a collective that waits a minute aborts its process.
      set_tests_properties(${M_NAME}_test PROPERTIES LABELS plugin RESOURCE_LOCK plugin)
    else()
      set_tests_properties(${M_NAME}_test PROPERTIES LABELS without_plugin)
      set_property(GLOBAL APPEND PROPERTY MINKA_TESTS_WITHOUT_PLUGIN ${M_NAME}_test)
    endif()
  endif()
endfunction()

# minka_fuzzer(NAME x_fuzzer SOURCES x_fuzzer.cc DEPS minka_ir ...)
#
# A libFuzzer target, built by preset fuzz only; its seeds lie in testdata/x_fuzzer_corpus/ beside its source.
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
# A program that prints a table and writes JSON; `make bench` runs it with ARGS in the repository's root.
function(minka_benchmark)
  if(NOT MINKA_BUILD_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(B "" "NAME" "SOURCES;DEPS;LIBS;ARGS" ${ARGN})
  add_executable(${B_NAME} ${B_SOURCES})
  target_link_libraries(${B_NAME} PRIVATE ${B_DEPS} ${B_LIBS})
  add_custom_target(run_${B_NAME} COMMAND ${B_NAME} ${B_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL)
  set_property(GLOBAL APPEND PROPERTY MINKA_BENCHMARKS ${B_NAME})
endfunction()

# The targets that gather what the modules above have registered; called once, last.
function(minka_summary_targets)
  get_property(tests GLOBAL PROPERTY MINKA_TESTS_WITHOUT_PLUGIN)
  add_custom_target(tests_without_plugin DEPENDS ${tests})
  get_property(fuzzers GLOBAL PROPERTY MINKA_FUZZERS)
  add_custom_target(fuzzers DEPENDS ${fuzzers})
  add_custom_target(bench)
  get_property(benchmarks GLOBAL PROPERTY MINKA_BENCHMARKS)
  set(previous "")
  foreach(benchmark IN LISTS benchmarks)
    add_dependencies(bench run_${benchmark})
    # One after the other: they measure time.
    if(previous)
      add_dependencies(run_${benchmark} run_${previous})
    endif()
    set(previous ${benchmark})
  endforeach()
endfunction()
