# Files as a C++ source, written at build time. Included: sx_embed_page(TARGET FOLDER) adds to TARGET the source with
# page_assets() of server/page.h. As a script (cmake -D folder= -D output= -D names=a,b -P embed.cmake): writes that source.
if(CMAKE_SCRIPT_MODE_FILE)
  set(types "html=text/html;css=text/css;js=text/javascript;svg=image/svg+xml")
  string(REPLACE "," ";" names "${names}")
  set(arrays "")
  set(rows "")
  set(number 0)
  foreach(name ${names})
    string(REGEX REPLACE ".*\\." "" ending "${name}")
    if(NOT ";${types};" MATCHES ";${ending}=([^;]*);")
      message(FATAL_ERROR "${name}: no content type is known for .${ending}")
    endif()
    set(type "${CMAKE_MATCH_1}")
    string(REGEX REPLACE "^index\\.html$" "" path "${name}")
    file(READ ${folder}/${name} bytes HEX)
    string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
    string(APPEND arrays "constexpr char kFile${number}[] = {${bytes}};\n")
    string(APPEND rows "    {\"/${path}\", \"${type}; charset=utf-8\", {kFile${number}, sizeof(kFile${number})}},\n")
    math(EXPR number "${number} + 1")
  endforeach()
  file(WRITE ${output} "// Written by cmake/embed.cmake.
#include \"server/page.h\"

namespace sx::server {
namespace {
${arrays}constexpr PageAsset kAssets[] = {
${rows}};
}  // namespace
std::span<const PageAsset> page_assets() { return kAssets; }
}  // namespace sx::server
")
  return()
endif()

set(SX_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(sx_embed_page target folder)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.html ${folder}/*.css ${folder}/*.js ${folder}/*.svg)
  set(names "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    list(APPEND names ${name})
  endforeach()
  list(JOIN names "," names)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/page_assets.cc)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D folder=${folder} -D output=${output} -D names=${names} -P ${SX_EMBED_SCRIPT}
    DEPENDS ${files} ${SX_EMBED_SCRIPT} VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
