# Run by minka_embed_text.
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(name file IN ZIP_LISTS NAMES FILES)
  file(READ ${file} text)
  file(APPEND ${OUTPUT} "\nconst std::string_view ${name} = R\"embedded(${text})embedded\";\n")
endforeach()
file(APPEND ${OUTPUT} "\n}  // namespace ${NAMESPACE}\n")
