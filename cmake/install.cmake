# What is installed: the program with what comes with it (component `program`) and, where it was built, the library (component
# `library`): the objects of all modules in one archive, libspecextend.a, behind the target specextend::specextend, with
# the public headers and a CMake package. What the modules link to from outside (fmt, PCRE2, utf8proc,
# threads) is collected from them, so that a module which gains a dependency needs no change here.
get_property(SX_MODULE_TARGETS GLOBAL PROPERTY SX_MODULES)
add_library(specextend_library STATIC)  # plain `specextend` is the program
add_library(specextend::specextend ALIAS specextend_library)
set(SX_OUTSIDE_LIBRARIES "")
foreach(module ${SX_MODULE_TARGETS})
  target_sources(specextend_library PRIVATE $<TARGET_OBJECTS:${module}>)
  get_target_property(libraries ${module} LINK_LIBRARIES)
  foreach(library ${libraries})
    # Header-only JSON is compiled in; sx_* are the modules themselves; ::@ is CMake's mark of a directory's scope.
    if(NOT library MATCHES "^(sx_.*|nlohmann_json::.*|::@.*)$")
      # A library found by its path is linked by its name, so that the package can be moved to another machine.
      string(REGEX REPLACE "^/.*/lib([^/]+)\\.(so|a)$" "\\1" library ${library})
      list(APPEND SX_OUTSIDE_LIBRARIES ${library})
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES SX_OUTSIDE_LIBRARIES)
set_target_properties(specextend_library PROPERTIES
  OUTPUT_NAME specextend EXPORT_NAME specextend LINKER_LANGUAGE CXX)
target_link_libraries(specextend_library PRIVATE ${SX_OUTSIDE_LIBRARIES})
target_compile_features(specextend_library INTERFACE cxx_std_20)
if(SPECEXTEND_SANITIZE)
  target_link_options(specextend_library INTERFACE -fsanitize=${SPECEXTEND_SANITIZE})
endif()
target_include_directories(specextend_library INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

add_subdirectory(${CMAKE_SOURCE_DIR}/cmake/library)  # a script of its own, which ends early where there is no library

# The drafts, where engine/shipped_drafts.cc looks for them beside the program, and what fetches the default model.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/models/ DESTINATION share/specextend/models COMPONENT program OPTIONAL)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/tools/fetch_model.py DESTINATION share/specextend COMPONENT program)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
