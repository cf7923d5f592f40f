# Drafters that look the text up in itself, and the fusion of two drafters.
target_sources(sx_spec PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/suffix_automaton.cc
  ${CMAKE_CURRENT_LIST_DIR}/text_store.cc
  ${CMAKE_CURRENT_LIST_DIR}/calibration.cc
  ${CMAKE_CURRENT_LIST_DIR}/drafter_index.cc
  ${CMAKE_CURRENT_LIST_DIR}/drafter_ngram.cc
  ${CMAKE_CURRENT_LIST_DIR}/drafter_suffix.cc
  ${CMAKE_CURRENT_LIST_DIR}/drafter_fuse.cc)
