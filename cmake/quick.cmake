# SPECEXTEND_QUICK_BUILD: a build that is done soon. The headers that cost most are read once (the code still includes what it
# uses, since other builds have no precompiled headers), and code that no token waits for is optimised less.
set(common_headers <algorithm> <array> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <set>
  <span> <sstream> <string> <string_view> <unordered_map> <vector> <fmt/format.h> <nlohmann/json.hpp>)
file(WRITE ${CMAKE_BINARY_DIR}/no_code.cc "// sx_headers only has headers.\n")
add_library(sx_headers OBJECT ${CMAKE_BINARY_DIR}/no_code.cc)
target_link_libraries(sx_headers PRIVATE sx_settings fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
target_precompile_headers(sx_headers PRIVATE ${common_headers})
# Not sx_backend: its kernels have flags of their own, with which g++ cannot use the file.
foreach(target sx_model_io sx_model sx_model_convert sx_text sx_jinja sx_spec sx_engine sx_server_api sx_server)
  if(TARGET ${target})
    target_precompile_headers(${target} REUSE_FROM sx_headers)
  endif()
endforeach()
if(TARGET specextend)
  target_precompile_headers(specextend PRIVATE ${common_headers} <CLI/CLI.hpp>)
endif()
foreach(target sx_model_io sx_jinja sx_server_api sx_server specextend)
  if(TARGET ${target})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endforeach()
