sx_test(attention sx_backend ${CMAKE_CURRENT_LIST_DIR}/attention_test.cc)
sx_test(kv sx_backend ${CMAKE_CURRENT_LIST_DIR}/kv_test.cc ${CMAKE_CURRENT_LIST_DIR}/kv_share_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/nibbles_test.cc)
target_include_directories(test_attention PRIVATE ${CMAKE_CURRENT_LIST_DIR})
target_include_directories(test_kv PRIVATE ${CMAKE_CURRENT_LIST_DIR})
sx_test(kv_units sx_backend ${CMAKE_CURRENT_LIST_DIR}/kv_units_test.cc)
sx_test(kv_score "sx_backend;sx_test_backends" ${CMAKE_CURRENT_LIST_DIR}/kv_score_test.cc)
target_include_directories(test_kv_score PRIVATE ${CMAKE_CURRENT_LIST_DIR})
