# Acceptance by replay: it needs the engine's parts (speculation, tokenizer), not the engine.
find_package(CLI11 REQUIRED)
add_executable(bench_acceptance ${CMAKE_SOURCE_DIR}/bench/bench_acceptance.cc
  ${CMAKE_SOURCE_DIR}/bench/bench_acceptance_replay.cc)
target_link_libraries(bench_acceptance PRIVATE sx_engine CLI11::CLI11 nlohmann_json::nlohmann_json)
