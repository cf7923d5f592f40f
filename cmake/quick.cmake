# SPECEXTEND_QUICK_BUILD: a build that is done soon. The headers that cost most are read once (the code still includes what it
# uses, since other builds have no precompiled headers), several files of a module are compiled as one, and code that no token
# waits for is optimised less.
set(common_headers <algorithm> <array> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <set>
  <span> <sstream> <string> <string_view> <unordered_map> <vector> <fmt/format.h>)
file(WRITE ${CMAKE_BINARY_DIR}/no_code.cc "// Targets of headers only.\n")
# sx_headers(name headers...): a target whose precompiled headers others use.
function(sx_headers name)
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/no_code.cc)
  target_link_libraries(${name} PRIVATE sx_settings fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
sx_headers(sx_headers ${common_headers})
sx_headers(sx_json_headers ${common_headers} <nlohmann/json.hpp>)  # larger: only for modules where most files read JSON

function(sx_use_headers headers)
  foreach(target ${ARGN})
    if(TARGET ${target})
      target_precompile_headers(${target} REUSE_FROM ${headers})
    endif()
  endforeach()
endfunction()
# Not sx_backend: its kernels have flags of their own, with which g++ cannot use the file.
sx_use_headers(sx_headers sx_model sx_model_convert sx_text sx_speculative)
sx_use_headers(sx_json_headers sx_formats sx_jinja sx_engine sx_server_api sx_server sx_explain sx_eval)
if(TARGET specextend)
  target_precompile_headers(specextend PRIVATE ${common_headers} <CLI/CLI.hpp>)
endif()
foreach(target sx_formats sx_jinja sx_server_api sx_server sx_explain sx_eval specextend)
  if(TARGET ${target})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endforeach()

# Files compiled together must not use the same name twice in their unnamed namespaces (tools/check_names.py); those under `alone` still
# do. sx_backend is left out: its kernels have flags of their own.
set(together sx_formats sx_model sx_model_convert sx_text sx_jinja sx_speculative sx_engine sx_server_api sx_server sx_explain sx_eval specextend)
set(alone speculative/budget/draft_controller.cc speculative/budget/batch_budget.cc speculative/cache/retrieval_layers.cc)
list(JOIN alone "|" alone)
foreach(target ${together})
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 14)
    get_target_property(files ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    foreach(file ${files})
      set(path ${folder}/${file})
      if(path MATCHES "/(${alone})$")
        set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
    endforeach()
  endif()
endforeach()
