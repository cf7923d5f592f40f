# The op table as a benchmark.
find_package(benchmark REQUIRED)
include(${CMAKE_SOURCE_DIR}/tests/backend/parity/library.cmake)
add_executable(bench_ops ${CMAKE_SOURCE_DIR}/bench/bench_ops.cc)
target_link_libraries(bench_ops PRIVATE sx_parity benchmark::benchmark)
