target_sources(sx_speculative PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/acceptance.cc
  ${CMAKE_CURRENT_LIST_DIR}/accept_match.cc
  ${CMAKE_CURRENT_LIST_DIR}/accept_rules.cc
  ${CMAKE_CURRENT_LIST_DIR}/accept_block.cc
  ${CMAKE_CURRENT_LIST_DIR}/accept_traversal.cc
  ${CMAKE_CURRENT_LIST_DIR}/accept_lossy.cc)
