# What packages hold beside what `cmake --install` installs: documents, manual pages, the Python
# package, the list of parts (SBOM).
set(documents ${CMAKE_CURRENT_BINARY_DIR}/documents)
file(REMOVE_RECURSE ${documents})
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/documents.py
                        ${PROJECT_SOURCE_DIR} ${documents}
                COMMAND_ERROR_IS_FATAL ANY)
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${sources} ${CMAKE_CURRENT_SOURCE_DIR}/documents.py)
install(DIRECTORY ${documents}/terraced DESTINATION share/doc COMPONENT daemon)
install(DIRECTORY ${documents}/libterrace-dev DESTINATION share/doc COMPONENT development)

# From --help, so that they cannot say anything else.
set(manuals ${CMAKE_CURRENT_BINARY_DIR}/man)
add_custom_command(OUTPUT ${manuals}/made
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/manuals.py ${HELP2MAN}
          ${PROJECT_VERSION} ${epoch} ${manuals} $<TARGET_FILE:terraced> $<TARGET_FILE:terrace>
  DEPENDS manuals.py terraced terrace COMMENT "Manual pages from --help" VERBATIM)
add_custom_target(terrace_manuals ALL DEPENDS ${manuals}/made)
install(DIRECTORY ${manuals}/man8 DESTINATION share/man COMPONENT daemon)
install(DIRECTORY ${manuals}/man1 DESTINATION share/man COMPONENT tools)

set(site lib/python3/dist-packages)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/python/terrace DESTINATION ${site} COMPONENT python
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
configure_file(python_metadata.in python_metadata @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/python_metadata
        DESTINATION ${site}/terrace_kv-${PROJECT_VERSION}.egg-info RENAME PKG-INFO COMPONENT python)
install(FILES python_entry_points.txt DESTINATION ${site}/terrace_kv-${PROJECT_VERSION}.egg-info
        RENAME entry_points.txt COMPONENT python)

# Once all is built: it reads which headers and libraries went into the programs.
set(parts ${CMAKE_BINARY_DIR}/terrace-${PROJECT_VERSION}.spdx.json)
install(CODE "
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/parts.py
                  ${CMAKE_BINARY_DIR} ${PROJECT_VERSION} ${epoch} ${parts}
                  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT daemon)
install(FILES ${parts} DESTINATION share/doc/terraced COMPONENT daemon)
