# The library terrace_build_version: version and commit, for what programs answer to --version. As a
# script (cmake -P) it writes that library's source, and leaves it alone where nothing changed.
if(CMAKE_SCRIPT_MODE_FILE)
  if(NOT commit)
    # The tree may be another user's than the builder's (root in a container).
    execute_process(
      COMMAND git -c safe.directory=* describe --always --dirty --abbrev=12 --exclude=*
      WORKING_DIRECTORY ${root} OUTPUT_VARIABLE commit ERROR_QUIET
      OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(NOT commit)
    set(commit unknown)
  endif()
  file(CONFIGURE OUTPUT ${output} CONTENT [[#include "src/build_version.h"

namespace terrace {

const char* BuildVersion() { return "@version@ (@commit@)"; }

}  // namespace terrace
]] @ONLY)
  return()
endif()

set(TERRACE_COMMIT "" CACHE STRING
    "Commit that programs name at --version; empty: git is asked at each build")
set(build_version_source ${CMAKE_BINARY_DIR}/include/build_version.cc)
# Always: only git knows whether there is a new commit.
add_custom_target(terrace_build_version_source
  COMMAND ${CMAKE_COMMAND} -Droot=${PROJECT_SOURCE_DIR} -Dversion=${PROJECT_VERSION}
          -Dcommit=${TERRACE_COMMIT} -Doutput=${build_version_source} -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${build_version_source}
  COMMENT "Asking git for the commit")
add_library(terrace_build_version STATIC ${build_version_source})
target_include_directories(terrace_build_version PUBLIC ${PROJECT_SOURCE_DIR}/include)
add_dependencies(terrace_build_version terrace_build_version_source)
