sx_test(choose "sx_backend;sx_test_backends;sx_test_support" choose_test.cc probabilities_test.cc top_k_test.cc cuda_loader_test.cc)
target_include_directories(test_choose PRIVATE ${CMAKE_CURRENT_LIST_DIR})
# A library that stands for the CUDA backend of another version.
add_library(other_plugin MODULE ${CMAKE_CURRENT_LIST_DIR}/other_plugin.cc)
target_link_libraries(other_plugin PRIVATE sx_settings)
target_compile_definitions(test_choose PRIVATE SX_OTHER_PLUGIN="$<TARGET_FILE:other_plugin>")
add_dependencies(test_choose other_plugin)
