sx_test(linear sx_backend linear_test.cc linear_extremes_test.cc linear_super_test.cc)
sx_test(experts sx_backend experts_test.cc)
target_include_directories(test_experts PRIVATE ${CMAKE_SOURCE_DIR}/tests)
