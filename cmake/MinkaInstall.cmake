# `cmake --install` and find_package(minka): the libraries, headers and executables, and the package's CMake files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(minka_install)
  get_property(modules GLOBAL PROPERTY MINKA_MODULES)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/minka)
  foreach(target IN LISTS modules)
    string(REGEX REPLACE "^minka_" "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endforeach()
  set_target_properties(minka_flags PROPERTIES EXPORT_NAME flags)
  install(TARGETS ${modules} minka_flags EXPORT minka_targets)
  install(EXPORT minka_targets NAMESPACE minka:: DESTINATION ${package_dir} FILE minkaTargets.cmake)

  install(DIRECTORY ${PROJECT_SOURCE_DIR}/minka DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN testdata EXCLUDE)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/minka DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.pb.h" PATTERN CMakeFiles EXCLUDE)

  write_basic_package_version_file(${PROJECT_BINARY_DIR}/minkaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES
    ${PROJECT_SOURCE_DIR}/cmake/minkaConfig.cmake ${PROJECT_SOURCE_DIR}/cmake/FindXXHash.cmake
    ${PROJECT_BINARY_DIR}/minkaConfigVersion.cmake
    DESTINATION ${package_dir})
  foreach(tool IN ITEMS minka minka-worker)
    if(TARGET ${tool})
      install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
endfunction()
