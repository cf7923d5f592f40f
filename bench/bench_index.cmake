# The index drafters.
find_package(benchmark REQUIRED)
add_executable(bench_index ${CMAKE_SOURCE_DIR}/bench/bench_index.cc)
target_link_libraries(bench_index PRIVATE sx_speculative benchmark::benchmark)
