# Compiler settings shared by every target: C++20, warnings, no floating-point contraction behind our back
# (the law needs one fixed order of operations; kernels ask for fused multiply-add explicitly).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # kernel files ask for -O3 themselves
find_program(SPECEXTEND_CCACHE ccache)
if(SPECEXTEND_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SPECEXTEND_CCACHE})
endif()

add_library(sx_settings INTERFACE)
target_compile_options(sx_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off -fno-math-errno -fno-trapping-math>)
if(SPECEXTEND_STRICT)  # where we know the compiler: others have false alarms of their own
  target_compile_options(sx_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of g++ 12 inside std::string (GCC bugs 105329 and 105651).
  target_compile_options(sx_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-maybe-uninitialized>)
endif()
target_include_directories(sx_settings INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)

set(SPECEXTEND_SANITIZE "" CACHE STRING "Comma-separated sanitizers, e.g. address,undefined or thread")
if(SPECEXTEND_SANITIZE)
  target_compile_options(sx_settings INTERFACE -fsanitize=${SPECEXTEND_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(sx_settings INTERFACE -fsanitize=${SPECEXTEND_SANITIZE})
endif()

# sx_module(name sources...): one static library per module of src/. The installed library is made of all of them.
function(sx_module name)
  set_property(GLOBAL APPEND PROPERTY SX_MODULES sx_${name})
  add_library(sx_${name} STATIC ${ARGN})
  target_link_libraries(sx_${name} PUBLIC sx_settings fmt::fmt Threads::Threads)
endfunction()

# sx_test(name libraries sources...): a GoogleTest program, its cases found by ctest.
# Half of what a build takes is its tests, so their own code gets -O1, and the headers that cost most are read once for all of them
# (each test still includes what it uses: the sanitizers' builds have no precompiled headers).
function(sx_test name libraries)
  add_executable(test_${name} ${ARGN})
  target_link_libraries(test_${name} PRIVATE ${libraries} GTest::gtest GTest::gmock GTest::gtest_main)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT SPECEXTEND_SANITIZE)
    if(NOT TARGET sx_test_headers)
      file(WRITE ${CMAKE_BINARY_DIR}/no_test.cc "int main() { return 0; }  // a program of headers only\n")
      add_executable(sx_test_headers ${CMAKE_BINARY_DIR}/no_test.cc)
      target_link_libraries(sx_test_headers PRIVATE sx_settings fmt::fmt Threads::Threads GTest::gtest GTest::gmock)
      target_precompile_headers(sx_test_headers PRIVATE <algorithm> <array> <chrono> <filesystem> <fstream> <functional> <map> <memory> <optional>
        <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <vector> <fmt/format.h> <gmock/gmock.h> <gtest/gtest.h>
        <nlohmann/json.hpp>)
      target_compile_options(sx_test_headers PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    target_precompile_headers(test_${name} REUSE_FROM sx_test_headers)
    target_compile_options(test_${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endif()
  gtest_discover_tests(test_${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()
