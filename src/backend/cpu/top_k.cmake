# Looking through logits: choose(), law() and top_k(), and their inner loops with the flags of their instruction set
# (optimised in debug builds too).
target_sources(sx_backend PRIVATE cpu/choose.cc cpu/top_k.cc cpu/top_k_kernels.cc)
set_source_files_properties(cpu/choose.cc cpu/top_k.cc PROPERTIES COMPILE_OPTIONS -O3)
if("GENERIC" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/top_k_generic.cc)
  set_source_files_properties(cpu/top_k_generic.cc PROPERTIES COMPILE_OPTIONS -O3)
endif()
if(SX_ISAS MATCHES "NEON")
  target_sources(sx_backend PRIVATE cpu/top_k_neon.cc)
  set_source_files_properties(cpu/top_k_neon.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-funroll-loops;-march=armv8.2-a+fp16+dotprod")
endif()
if("AVX2" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/top_k_avx2.cc)
  set_source_files_properties(cpu/top_k_avx2.cc PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
endif()
if("AVX512" IN_LIST SX_ISAS)
  target_sources(sx_backend PRIVATE cpu/top_k_avx512.cc)
  set_source_files_properties(cpu/top_k_avx512.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c")
endif()
