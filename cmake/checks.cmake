# The checks of the source tree itself, as tests: layers, text, headers that compile alone, and the format.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

function(sx_check name)
  add_test(NAME check.${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(check.${name} PROPERTIES LABELS check TIMEOUT 1800)
endfunction()

sx_check(layers ${Python3_EXECUTABLE} tools/check_layers.py)
sx_check(text ${Python3_EXECUTABLE} tools/check_text.py)
sx_check(headers ${Python3_EXECUTABLE} tools/check_headers.py
  --compiler ${CMAKE_CXX_COMPILER} --build ${CMAKE_BINARY_DIR})
sx_check(chart ${Python3_EXECUTABLE} bench/plot_context.py --check)
sx_check(figures ${Python3_EXECUTABLE} tools/check_figures.py)
sx_check(figures_rules ${Python3_EXECUTABLE} tools/check_figures.py --self-test)
sx_check(text_rules ${Python3_EXECUTABLE} tools/check_text.py --self-test)
sx_check(names ${Python3_EXECUTABLE} tools/check_names.py ${CMAKE_BINARY_DIR}/compile_commands.json)
sx_check(quick ${Python3_EXECUTABLE} tools/check_quick.py ${CMAKE_BINARY_DIR}/quick)
set_tests_properties(check.quick PROPERTIES LABELS "check;slow")
sx_check(wrap_rules ${Python3_EXECUTABLE} tools/wrap_comments.py --self-test)
sx_check(layers_rules ${Python3_EXECUTABLE} tools/check_layers.py --self-test)

option(SPECEXTEND_CHECK_FORMAT "Test that clang-format 14 would change no file" ON)
if(SPECEXTEND_CHECK_FORMAT)
  sx_check(format tools/format.sh --check)
  set_tests_properties(check.format PROPERTIES SKIP_RETURN_CODE 77)
endif()
