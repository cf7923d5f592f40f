# SPECEXTEND_QUICK_BUILD: a build that is done soon. The headers that cost most are read once (the code still includes what it
# uses, since other builds have no precompiled headers), several files of a module are compiled as one, and code whose time no token
# notices is optimised less. The code of a token, from the tokenizer to the kernels, has the flags of every other build.
file(WRITE ${CMAKE_BINARY_DIR}/no_code.cc "// A target of headers only.\n")
add_library(sx_headers OBJECT ${CMAKE_BINARY_DIR}/no_code.cc)
target_link_libraries(sx_headers PRIVATE sx_settings fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
target_precompile_headers(sx_headers PRIVATE <algorithm> <array> <chrono> <cmath> <condition_variable> <filesystem> <fstream> <functional> <map>
  <memory> <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <vector> <fmt/format.h> <nlohmann/json.hpp>)

# Files compiled together must not use the same name twice in their unnamed namespaces (tools/check_names.py); those under `alone` still
# do, and files with flags of their own, such as kernels, are compiled alone by CMake.
set(together sx_base sx_comm sx_tensor sx_kv sx_backend sx_formats sx_model sx_model_convert sx_text sx_jinja sx_speculative sx_engine sx_server_api
  sx_server sx_explain sx_eval specextend)
set(alone speculative/budget/draft_controller.cc speculative/budget/batch_budget.cc)
list(JOIN alone "|" alone)
set(less sx_formats sx_model_convert sx_jinja sx_engine sx_server_api sx_server sx_explain sx_eval specextend)  # optimised less
if(TARGET sx_engine)  # the version for all files, or those that have it were compiled alone
  target_compile_definitions(sx_engine PRIVATE SPECEXTEND_VERSION="${PROJECT_VERSION}" SPECEXTEND_SOURCE="${CMAKE_SOURCE_DIR}")
endif()

foreach(target ${together})
  if(NOT TARGET ${target})
    continue()
  endif()
  target_precompile_headers(${target} REUSE_FROM sx_headers)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>)  # what files of a batch see of each other
  if(target IN_LIST less)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  get_target_property(files ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  list(LENGTH files count)
  set(most 30)
  if(folder MATCHES "/apps$")  # ninja begins these last: smaller ones keep all cores busy until the end
    set(most 14)
  endif()
  math(EXPR batches "(${count} + ${most} - 1) / ${most}")
  math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  foreach(file ${files})
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder} OUTPUT_VARIABLE path)
    get_source_file_property(flags ${path} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    if(target STREQUAL sx_engine)
      set_property(SOURCE ${path} TARGET_DIRECTORY ${target} PROPERTY COMPILE_DEFINITIONS)
    endif()
    if(flags MATCHES "-m")  # g++ reads a precompiled header for the same instruction set only
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    elseif(path MATCHES "/(${alone})$" OR path MATCHES "/linear/linear_.*cc$")  # these name their instruction set by a macro
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(target STREQUAL sx_server)  # those that include Boost are compiled together: it costs more than the rest
      if(path MATCHES "/(request_head|wire|connections?|workers|listener|server|hub_client)\\.cc$")
        set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP boost)
      else()
        set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP rest)
      endif()
    endif()
  endforeach()
endforeach()
if(TARGET specextend)  # -fPIC like the others, not the -fPIE of programs, with which g++ does not read the headers of a library
  set_target_properties(specextend PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(specextend PRIVATE -fPIC)
endif()
if(TARGET sx_server)
  set_target_properties(sx_server PROPERTIES UNITY_BUILD_MODE GROUP)
endif()
