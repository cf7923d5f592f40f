# Looking through logits: choose(), law() and top_k(), and their inner loops with the flags of their instruction set
# (optimised in debug builds too).
target_sources(sx_backend PRIVATE cpu/choose.cc cpu/top_k.cc cpu/top_k_kernels.cc cpu/top_k_generic.cc)
set_source_files_properties(cpu/choose.cc cpu/top_k.cc cpu/top_k_generic.cc PROPERTIES COMPILE_OPTIONS -O3)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_sources(sx_backend PRIVATE cpu/top_k_neon.cc)
  set_source_files_properties(cpu/top_k_neon.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-funroll-loops;-march=armv8.2-a+fp16+dotprod")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  target_sources(sx_backend PRIVATE cpu/top_k_avx2.cc cpu/top_k_avx512.cc)
  set_source_files_properties(cpu/top_k_avx2.cc PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
  set_source_files_properties(cpu/top_k_avx512.cc PROPERTIES
    COMPILE_OPTIONS "-O3;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c")
endif()
