# HiGHS from the wheel highsbox in the build's private virtual environment: defines the target Highs::c_api.
# Only the C API: the wheel's C++ classes have the old ABI, and its own CMake package names a folder it does not have.
set(MINKA_VENV ${PROJECT_SOURCE_DIR}/build/venv CACHE PATH "Private virtual environment made by 'make deps'")
file(GLOB _highs_roots ${MINKA_VENV}/lib/python3*/site-packages/highsbox*)
find_path(HIGHS_INCLUDE_DIR highs/interfaces/highs_c_api.h interfaces/highs_c_api.h
  HINTS ${_highs_roots} PATH_SUFFIXES highs_dist/include highs_dist/include/highs include include/highs)
find_library(HIGHS_LIBRARY highs HINTS ${_highs_roots} PATH_SUFFIXES highs_dist/lib lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highs REQUIRED_VARS HIGHS_LIBRARY HIGHS_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "the solver's tests compare with it: run 'make deps', or configure with MINKA_BUILD_TESTS=OFF")
if(Highs_FOUND AND NOT TARGET Highs::c_api)
  add_library(Highs::c_api UNKNOWN IMPORTED)
  set_target_properties(Highs::c_api PROPERTIES IMPORTED_LOCATION ${HIGHS_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${HIGHS_INCLUDE_DIR};${HIGHS_INCLUDE_DIR}/highs")
endif()
