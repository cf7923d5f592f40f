sx_test(choose "sx_backend;sx_test_backends" choose_test.cc probabilities_test.cc top_k_test.cc)
target_include_directories(test_choose PRIVATE ${CMAKE_CURRENT_LIST_DIR})
