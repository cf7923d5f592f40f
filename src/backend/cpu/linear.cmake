# Linear layers: one translation unit per instruction set, each with its own flags, chosen at run time. Kernels are optimised
# in every configuration (a debug build would be a hundred times slower). -fno-schedule-insns: g++ 12 otherwise moves
# loads of tile operands far ahead of their use and spills accumulators. A file without the flags of its set has no kernels.
target_sources(sx_backend PRIVATE
  cpu/linear.cc cpu/linear_generic.cc cpu/linear_neon_dot.cc cpu/linear_neon_i8mm.cc cpu/linear_avx2.cc cpu/linear_avx512.cc)
set(kernel_flags -O3)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kernel_flags -fno-schedule-insns)
endif()
set(generic_flags -O3)
if(SPECEXTEND_SANITIZE)
  list(APPEND generic_flags -fno-sanitize=all)  # instrumented, this one file takes g++ many minutes
endif()
set_source_files_properties(cpu/linear_generic.cc PROPERTIES COMPILE_OPTIONS "${generic_flags}")
if("NEON_DOT" IN_LIST SX_ISAS)
  set_source_files_properties(cpu/linear_neon_dot.cc PROPERTIES COMPILE_OPTIONS
    "${kernel_flags};-march=armv8.2-a+fp16+dotprod")
endif()
if("NEON_I8MM" IN_LIST SX_ISAS)
  set_source_files_properties(cpu/linear_neon_i8mm.cc PROPERTIES COMPILE_OPTIONS
    "${kernel_flags};-march=armv8.2-a+fp16+dotprod+i8mm+bf16")
endif()
if("AVX2" IN_LIST SX_ISAS)
  set_source_files_properties(cpu/linear_avx2.cc PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
endif()
if("AVX512" IN_LIST SX_ISAS)
  set_source_files_properties(cpu/linear_avx512.cc PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c")
endif()
