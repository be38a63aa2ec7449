# Parsing the standard library and GoogleTest is most of what compiling a test takes: they are
# parsed once. Builds under a sanitizer are for tests only and take long: there the product's
# sources share a precompiled standard library, too. A plain build parses each of those by itself:
# that is where a missing #include is found.
find_package(nlohmann_json REQUIRED)
set(common_headers <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cstddef> <cstdint>
    <cstring> <deque> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional>
    <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility>
    <vector>)
set(empty_source ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cc)
file(CONFIGURE OUTPUT ${empty_source} CONTENT "int main() { return 0; }\n")

# g++ demands the very same code generation of a header and of those who use it. Some libraries ask
# for this definition: so all have it.
set(precompiled_definitions _FILE_OFFSET_BITS=64)
function(terrace_precompile_for_tests name options)
  add_executable(${name} EXCLUDE_FROM_ALL ${empty_source})
  target_compile_options(${name} PRIVATE ${options})
  target_compile_definitions(${name} PRIVATE ${precompiled_definitions})
  target_link_libraries(${name} PRIVATE GTest::gmock Threads::Threads)
  target_precompile_headers(${name} PRIVATE ${common_headers} <gtest/gtest.h> <gmock/gmock.h>
                            ${ARGN})
endfunction()

# Gives `target` the headers of `name`, and the options they were compiled with.
function(terrace_reuse_headers target name)
  get_target_property(options ${name} COMPILE_OPTIONS)
  target_compile_options(${target} PRIVATE ${options})
  target_compile_definitions(${target} PRIVATE ${precompiled_definitions})
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

terrace_precompile_for_tests(terrace_test_headers "${test_options}")
terrace_precompile_for_tests(terrace_json_test_headers "${test_options}" <nlohmann/json.hpp>)
terrace_precompile_for_tests(terrace_busy_test_headers "${busy_test_options}")

# Clang takes two and a half times as long to compile a room with -O1 as with -O0: under a sanitizer
# those are optimised that millions of steps of simulations and models, or bytes by the gigabyte, go
# through.
set(busy_rooms_sanitized
    terrace_include terrace_cuda_kernels terrace_cuda_copy terrace_planes
    terrace_daemon_block terrace_daemon_index terrace_daemon_policy
    terrace_daemon_policy_eviction terrace_tiers terrace_tiers_arena terrace_tiers_crypto
    terrace_tools_replay terrace_tools_replay_eviction)
function(terrace_precompile_for_rooms name options)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${empty_source})
  target_compile_options(${name} PRIVATE ${options})
  target_compile_definitions(${name} PRIVATE ${precompiled_definitions})
  target_precompile_headers(${name} PRIVATE ${common_headers})
endfunction()

if(TERRACE_SANITIZE)
  terrace_precompile_for_rooms(terrace_room_headers -O0)
  terrace_precompile_for_rooms(terrace_busy_room_headers -O1)
  get_property(rooms GLOBAL PROPERTY terrace_rooms)
  foreach(room terrace_include ${rooms})
    if(TERRACE_SANITIZE_FAST OR room IN_LIST busy_rooms_sanitized)
      terrace_reuse_headers(${room} terrace_busy_room_headers)
    else()
      terrace_reuse_headers(${room} terrace_room_headers)
    endif()
  endforeach()
endif()
