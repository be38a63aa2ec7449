# Builds under a sanitizer are for tests only and take long: there the standard library is parsed
# once for the product's sources, and together with GoogleTest once for the tests. A plain build
# parses every source by itself: that is where a missing #include is found.
set(common_headers <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cstddef> <cstdint>
    <cstring> <deque> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional>
    <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility>
    <vector>)
set(empty_source ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cc)
file(CONFIGURE OUTPUT ${empty_source} CONTENT "int main() { return 0; }\n")

# g++ demands the very same code generation of a header and of those who use it. Some libraries ask
# for this definition: so all have it.
set(precompiled_definitions _FILE_OFFSET_BITS=64)
add_executable(terrace_test_headers EXCLUDE_FROM_ALL ${empty_source})
target_compile_options(terrace_test_headers PRIVATE ${test_options})
target_compile_definitions(terrace_test_headers PRIVATE ${precompiled_definitions})
target_link_libraries(terrace_test_headers PRIVATE GTest::gmock Threads::Threads)
target_precompile_headers(terrace_test_headers PRIVATE ${common_headers} <gtest/gtest.h>
                          <gmock/gmock.h>)

add_library(terrace_library_headers OBJECT EXCLUDE_FROM_ALL ${empty_source})
target_compile_definitions(terrace_library_headers PRIVATE ${precompiled_definitions})
target_precompile_headers(terrace_library_headers PRIVATE ${common_headers})
foreach(library include device tiers core disk config daemon client tools)
  target_compile_definitions(terrace_${library} PRIVATE ${precompiled_definitions})
  target_precompile_headers(terrace_${library} REUSE_FROM terrace_library_headers)
endforeach()
