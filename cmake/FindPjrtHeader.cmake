# The PJRT C API header that the CPU plugin's wheel ships, in the build's private virtual environment or, where pip builds
# minka, in pip's: sets PJRT_INCLUDE_DIR. Only the header: plugins are loaded at run time.
set(MINKA_VENV ${PROJECT_SOURCE_DIR}/build/venv CACHE PATH "Private virtual environment made by 'make deps'")
file(GLOB _pjrt_roots ${MINKA_VENV}/lib/python3*/site-packages/xla_plugins/xla_cpu_pjrt)
if(SKBUILD)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import xla_plugins.xla_cpu_pjrt as package; print(package.__path__[0])"
    OUTPUT_VARIABLE _pjrt_of_pip OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(PREPEND _pjrt_roots ${_pjrt_of_pip})
endif()
find_path(PJRT_INCLUDE_DIR pjrt_c_api.h HINTS ${_pjrt_roots} PATH_SUFFIXES include)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PjrtHeader REQUIRED_VARS PJRT_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run 'make deps', or set MINKA_VENV to an environment with the package xla-cpu-pjrt")
