# Attention and the KV store of the CPU backend: the shared driver, and kernels with the flags of their instruction set
# (optimised in debug builds too).
target_sources(sx_backend PRIVATE
  cpu/kv_layout.cc cpu/kv_store.cc cpu/kv_rope.cc cpu/kv_move.cc cpu/kv_cells.cc cpu/kv_score.cc
  cpu/attention.cc cpu/attention_plan.cc cpu/attention_kernels.cc)
set_source_files_properties(cpu/kv_layout.cc cpu/kv_rope.cc cpu/kv_move.cc PROPERTIES COMPILE_OPTIONS -O3)

# g++ 12's first scheduling pass moves loads up until the accumulators spill; clang needs no help.
set(sx_attention_tune)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(sx_attention_tune -fno-schedule-insns -mtune=neoverse-v1)
endif()
if("GENERIC" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/attention_generic.cc)
  set_source_files_properties(cpu/attention_generic.cc PROPERTIES COMPILE_OPTIONS -O3)
endif()
if(SX_ISAS MATCHES "NEON")
  target_sources(sx_backend PRIVATE cpu/attention_neon.cc)
  set_source_files_properties(cpu/attention_neon.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-march=armv8.2-a+fp16+dotprod;${sx_attention_tune}")
endif()
if("NEON_I8MM" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/attention_i8mm_bf16.cc cpu/attention_i8mm_q8.cc)
  set_source_files_properties(cpu/attention_i8mm_bf16.cc cpu/attention_i8mm_q8.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-march=armv8.2-a+fp16+fp16fml+dotprod+i8mm+bf16;${sx_attention_tune}")
endif()
if("AVX2" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/attention_avx2.cc)
  set_source_files_properties(cpu/attention_avx2.cc PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
endif()
if("AVX512" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/attention_avx512.cc)
  set_source_files_properties(cpu/attention_avx512.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c")
endif()
