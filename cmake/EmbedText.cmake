# minka_embed_text(OUTPUT assets.cc HEADER minka/x/assets.h NAMESPACE minka::x NAMES kA kB FILES a.js b.css)
#
# A source that defines each name as the text of its file. It is made anew when a file changes.
function(minka_embed_text)
  cmake_parse_arguments(E "" "OUTPUT;HEADER;NAMESPACE" "NAMES;FILES" ${ARGN})
  add_custom_command(
    OUTPUT ${E_OUTPUT}
    COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${E_OUTPUT}" "-DHEADER=${E_HEADER}" "-DNAMESPACE=${E_NAMESPACE}" "-DNAMES=${E_NAMES}"
            "-DFILES=${E_FILES}" -P ${PROJECT_SOURCE_DIR}/cmake/embed_text_script.cmake
    DEPENDS ${E_FILES} ${PROJECT_SOURCE_DIR}/cmake/embed_text_script.cmake
    VERBATIM)
endfunction()
