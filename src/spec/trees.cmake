# The token tree and the policies that grow it.
target_sources(sx_spec PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/tree.cc
  ${CMAKE_CURRENT_LIST_DIR}/tree_policy.cc
  ${CMAKE_CURRENT_LIST_DIR}/tree_static.cc
  ${CMAKE_CURRENT_LIST_DIR}/tree_sequoia.cc
  ${CMAKE_CURRENT_LIST_DIR}/tree_levels.cc
  ${CMAKE_CURRENT_LIST_DIR}/tree_opt.cc
  ${CMAKE_CURRENT_LIST_DIR}/tree_best_first.cc)
