# Which cells a drafter attends to.
target_sources(sx_spec PRIVATE ${CMAKE_CURRENT_LIST_DIR}/cache_choice.cc)
