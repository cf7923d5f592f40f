# Zero-padded upscales of models, a fixture of the benchmarks: sx_widen has what tests look at. Neither it nor the program is installed.
if(NOT TARGET sx_widen)
  add_library(sx_widen STATIC ${CMAKE_SOURCE_DIR}/bench/widen/widen.cc ${CMAKE_SOURCE_DIR}/bench/widen/widen_head.cc)
  target_include_directories(sx_widen PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(sx_widen PUBLIC sx_model_convert PRIVATE nlohmann_json::nlohmann_json)
endif()
