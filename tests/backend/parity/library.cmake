# The op table with its data and comparisons; shared by the parity test and the benchmark.
if(NOT TARGET sx_parity)
  add_library(sx_parity STATIC
    ${CMAKE_CURRENT_LIST_DIR}/table.cc ${CMAKE_CURRENT_LIST_DIR}/problem.cc ${CMAKE_CURRENT_LIST_DIR}/row_problems.cc
    ${CMAKE_CURRENT_LIST_DIR}/kv_problems.cc ${CMAKE_CURRENT_LIST_DIR}/cell_problems.cc ${CMAKE_CURRENT_LIST_DIR}/random_data.cc
    ${CMAKE_CURRENT_LIST_DIR}/retrieve_problem.cc ${CMAKE_CURRENT_LIST_DIR}/experts_problem.cc
    ${CMAKE_CURRENT_LIST_DIR}/backends.cc)
  target_link_libraries(sx_parity PUBLIC sx_backend)
  target_include_directories(sx_parity PUBLIC ${CMAKE_CURRENT_LIST_DIR})
endif()
