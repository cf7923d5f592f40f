# The parity table against the reference backend, on every backend of this machine.
include(${CMAKE_CURRENT_LIST_DIR}/parity/library.cmake)
sx_test(parity sx_parity ${CMAKE_CURRENT_LIST_DIR}/parity/parity_test.cc ${CMAKE_CURRENT_LIST_DIR}/parity/negative_test.cc
        ${CMAKE_CURRENT_LIST_DIR}/parity/tampered.cc)
target_include_directories(test_parity PRIVATE ${CMAKE_SOURCE_DIR}/tests)
