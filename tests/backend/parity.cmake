# The parity table against the reference backend, on every backend of this machine. What uses a GPU has the label cuda.
include(${CMAKE_CURRENT_LIST_DIR}/parity/library.cmake)
add_executable(test_parity ${CMAKE_CURRENT_LIST_DIR}/parity/parity_test.cc ${CMAKE_CURRENT_LIST_DIR}/parity/negative_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/parity/tampered.cc ${CMAKE_CURRENT_LIST_DIR}/parity/far_backends.cc)
sx_uses_cuda(test_parity)
target_link_libraries(test_parity PRIVATE sx_parity sx_test_backends GTest::gtest GTest::gmock GTest::gtest_main)
gtest_discover_tests(test_parity TEST_FILTER -Cuda/* TEST_LIST parity_tests DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
gtest_discover_tests(test_parity TEST_FILTER Cuda/* TEST_LIST cuda_parity_tests DISCOVERY_TIMEOUT 60
  PROPERTIES TIMEOUT 600 LABELS cuda RESOURCE_LOCK gpu)
