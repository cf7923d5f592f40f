# Installs the build into an empty prefix and checks that the promised files are there.
file(REMOVE_RECURSE ${prefix})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${prefix} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
foreach(pattern
    bin/specextend share/specextend/fetch_model.py include/specextend/specextend.h include/specextend/engine.h include/specextend/tokenizer.h include/specextend/error.h include/specextend/c.h libspecextend.a libspecextend_c.so
    cmake/specextend/specextendConfig.cmake cmake/specextend/specextendConfigVersion.cmake)
  file(GLOB found ${prefix}/${pattern} ${prefix}/lib*/${pattern} ${prefix}/lib/*/${pattern})
  if(NOT found)
    message(FATAL_ERROR "not installed: ${pattern}")
  endif()
endforeach()

# What only tests and benchmarks use is not in the library.
file(GLOB library ${prefix}/lib*/libspecextend.a ${prefix}/lib/*/libspecextend.a)
execute_process(COMMAND ${ar} t ${library} OUTPUT_VARIABLE objects COMMAND_ERROR_IS_FATAL ANY)
if(NOT objects MATCHES "engine\\.cc" OR objects MATCHES "(reference_backend|peaks|widen)[a-z0-9_]*\\.cc")
  message(FATAL_ERROR "libspecextend.a should have the engine, and no ${CMAKE_MATCH_0}")
endif()

# Every file of models/ of the source tree is beside the program.
file(GLOB_RECURSE drafts RELATIVE ${source}/models ${source}/models/*)
foreach(draft ${drafts})
  if(NOT EXISTS ${prefix}/share/specextend/models/${draft})
    message(FATAL_ERROR "not installed: models/${draft}")
  endif()
endforeach()

# The package must not know where it was built.
file(GLOB_RECURSE package_files ${prefix}/*.cmake)
foreach(file ${package_files})
  file(READ ${file} text)
  string(FIND "${text}" "${build}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "${file} names the build folder")
  endif()
endforeach()
