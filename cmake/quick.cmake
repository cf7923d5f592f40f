# SPECEXTEND_QUICK_BUILD: a build that is done soon. The headers that cost most are read once (the code still includes what it
# uses, since other builds have no precompiled headers), and code that no token waits for is optimised less.
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
sx_use_headers(sx_headers sx_formats sx_model sx_model_convert sx_text sx_speculative)
sx_use_headers(sx_json_headers sx_jinja sx_engine sx_server_api sx_server)
if(TARGET specextend)
  target_precompile_headers(specextend PRIVATE ${common_headers} <CLI/CLI.hpp>)
endif()
foreach(target sx_formats sx_jinja sx_server_api sx_server specextend)
  if(TARGET ${target})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endforeach()
