# Most of what a source costs to compile is headers that its neighbours read, too; and what one
# source of a room calls in another is inlined where the compiler sees both. Who changes one file
# again and again may want each by itself. That each includes what it names, tests/tidy.py sees.
option(TERRACE_UNITY "Compile several sources of a room together" ON)
if(TERRACE_UNITY)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
set(terrace_unity_groups ${CMAKE_CURRENT_LIST_DIR}/unity_groups.py)

# Lets the sources of `target` be compiled together, at most `size` at a time.
function(terrace_unite target size)
  if(NOT TERRACE_UNITY)
    return()
  endif()
  set(sources)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source)
    list(APPEND sources ${source})
  endforeach()
  list(JOIN sources "\t" sources)
  set_property(GLOBAL APPEND_STRING PROPERTY terrace_united "${target}\t${size}\t${sources}\n")
  set_property(GLOBAL APPEND PROPERTY terrace_united_targets ${target})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # g++ lets a small file grow by inlining as if it had 10,000 instructions, so a source alone grows
  # as it likes: ten of them may as well. A member of an unnamed namespace's type is no matter in a
  # source, but g++ thinks itself in a header.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=large-unit-insns=100000;-Wno-subobject-linkage>")
endfunction()

# Which sources go together, of all targets at once. To be called when all of them are there.
function(terrace_unite_all)
  get_property(targets GLOBAL PROPERTY terrace_united_targets)
  get_property(united GLOBAL PROPERTY terrace_united)
  if(NOT targets)
    return()
  endif()
  set(asked ${CMAKE_BINARY_DIR}/unity_groups.txt)
  file(WRITE ${asked} "${united}")
  execute_process(COMMAND ${Python3_EXECUTABLE} ${terrace_unity_groups} ${asked}
                  OUTPUT_VARIABLE answers OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" answers "${answers}")
  foreach(target answer IN ZIP_LISTS targets answers)
    get_target_property(directory ${target} SOURCE_DIR)
    string(REPLACE "\t" ";" answer "${answer}")
    foreach(source_and_group ${answer})
      string(REGEX MATCH "^(.*):([0-9]+)$" matched "${source_and_group}")
      set_source_files_properties(${CMAKE_MATCH_1} DIRECTORY ${directory}
                                  PROPERTIES UNITY_GROUP ${target}_${CMAKE_MATCH_2})
    endforeach()
  endforeach()
endfunction()

# A room is a folder with one library. `terrace_room(PATH ...)` names it by its path from the top;
# its target is terrace_<path>, with _ for /.
#
#   SOURCES  its files, from the room's folder; none: a room of headers
#   USES     rooms whose headers it may include, beside its own and include/'s. tests/tidy.py holds
#            the sources to this list, so every direction is written here once
#   LINKS    other libraries: PUBLIC before those its headers need, PRIVATE before the rest
function(terrace_room path)
  cmake_parse_arguments(PARSE_ARGV 1 room "" "" "SOURCES;USES;LINKS")
  if(room_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "terrace_room(${path}): '${room_UNPARSED_ARGUMENTS}' belongs to none of "
                        "SOURCES, USES and LINKS")
  endif()
  get_filename_component(root ${CMAKE_CURRENT_FUNCTION_LIST_DIR} DIRECTORY)
  terrace_target_of(${path} target)
  set(scope PUBLIC)
  if(room_SOURCES)
    list(TRANSFORM room_SOURCES PREPEND ${root}/${path}/)
    add_library(${target} STATIC ${room_SOURCES})
    set_property(GLOBAL APPEND PROPERTY terrace_rooms ${target})
    terrace_unite(${target} 10 ${room_SOURCES})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${root})
  target_link_libraries(${target} ${scope} terrace_include ${room_LINKS})
  foreach(used ${room_USES})
    terrace_target_of(${used} used)
    target_link_libraries(${target} ${scope} ${used})
  endforeach()
endfunction()

# The same for a room whose target is made beside this call, because it is no plain library.
function(terrace_room_uses path)
endfunction()

# All rooms of a part of the house under one name.
function(terrace_rooms name)
  add_library(${name} INTERFACE)
  foreach(path ${ARGN})
    terrace_target_of(${path} target)
    target_link_libraries(${name} INTERFACE ${target})
  endforeach()
endfunction()

function(terrace_target_of path result)
  string(REPLACE "/" "_" name ${path})
  set(${result} terrace_${name} PARENT_SCOPE)
endfunction()
