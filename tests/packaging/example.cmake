# Configures and builds the example as a project of its own against the installed prefix.
file(REMOVE_RECURSE ${work})
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${source} -B ${work} -D CMAKE_PREFIX_PATH=${prefix}
  -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_BUILD_TYPE=Release OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work} COMMAND_ERROR_IS_FATAL ANY)
