# The CPU backend: drivers that every instruction set shares, and kernels compiled with the flags of their set.
include(cpu/isa.cmake)
target_sources(sx_backend PRIVATE
  cpu/cpu_backend.cc cpu/isa.cc cpu/rows.cc
  cpu/kv/layout.cc cpu/kv/records.cc cpu/kv/store.cc cpu/kv/shared_extents.cc cpu/kv/rope.cc cpu/kv/move.cc cpu/kv/cells.cc cpu/kv/score.cc
  cpu/attention/attention.cc cpu/attention/attention_plan.cc cpu/attention/attention_kernels.cc
  cpu/sampling/choose.cc cpu/sampling/top_k.cc cpu/sampling/top_k_kernels.cc
  cpu/linear/linear.cc cpu/linear/table_groups.cc cpu/linear/experts.cc cpu/linear/expert_rows.cc)
set_source_files_properties(cpu/rows.cc cpu/kv/layout.cc cpu/kv/records.cc cpu/kv/rope.cc cpu/kv/move.cc cpu/sampling/choose.cc cpu/sampling/top_k.cc
  cpu/linear/expert_rows.cc
  PROPERTIES COMPILE_OPTIONS -O3)
set_source_files_properties(cpu/isa.cc cpu/rows.cc cpu/attention/attention_kernels.cc cpu/sampling/top_k_kernels.cc cpu/linear/linear_generic.cc
  PROPERTIES COMPILE_DEFINITIONS "${SX_ISA_MACROS}")

# g++ 12's first scheduling pass moves loads far ahead of their use until accumulators spill; clang needs no help.
set(no_schedule "")
set(neoverse "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(no_schedule -fno-schedule-insns)
  set(neoverse -mtune=neoverse-v1)
endif()

set(SX_attention_FLAGS_NEON ${no_schedule} ${neoverse})
sx_isa_kernel(attention INCLUDES backend/cpu/attention/attention_portable.inl backend/cpu/kv/score_portable.inl)
sx_isa_kernel(unpack INCLUDES backend/cpu/kv/unpack_portable.inl)
sx_isa_source(cpu/attention/attention_i8mm_bf16.cc NEON_I8MM ${no_schedule} ${neoverse})
sx_isa_source(cpu/attention/attention_i8mm_q8.cc NEON_I8MM ${no_schedule} ${neoverse})
sx_isa_source(cpu/attention/attention_amx.cc AMX -mamx-bf16 -mavx512bf16)

# See fast_exp.h.
set(no_threading "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(no_threading -fno-thread-jumps)
endif()
foreach(isa GENERIC NEON AVX2 AVX512)
  set(SX_rows_FLAGS_${isa} ${no_threading})
endforeach()
sx_isa_kernel(rows INCLUDES backend/cpu/rows_portable.inl)
set_property(SOURCE cpu/linear/expert_rows.cc APPEND PROPERTY COMPILE_OPTIONS ${no_threading})

set(SX_top_k_FLAGS_NEON -funroll-loops)
sx_isa_kernel(top_k INCLUDES backend/cpu/sampling/top_k_portable.inl)

# Every file of the linear layers is compiled: one whose set is not built has an empty table of kernels.
target_sources(sx_backend PRIVATE cpu/linear/linear_generic.cc cpu/linear/linear_neon_dot.cc cpu/linear/linear_neon_i8mm.cc
  cpu/linear/linear_avx2.cc cpu/linear/linear_avx512.cc cpu/linear/linear_vnni.cc cpu/linear/linear_amx.cc)
set(uninstrumented "")
if(SPECEXTEND_SANITIZE)
  set(uninstrumented -fno-sanitize=all)  # instrumented, this one file takes g++ many minutes
endif()
set_source_files_properties(cpu/linear/linear_generic.cc PROPERTIES COMPILE_OPTIONS "-O3;${uninstrumented}")
sx_isa_source(cpu/linear/linear_neon_dot.cc NEON_DOT ${no_schedule})
sx_isa_source(cpu/linear/linear_neon_i8mm.cc NEON_I8MM ${no_schedule})
sx_isa_source(cpu/linear/linear_avx2.cc AVX2)
sx_isa_source(cpu/linear/linear_avx512.cc AVX512)
sx_isa_source(cpu/linear/linear_vnni.cc VNNI)
sx_isa_source(cpu/linear/linear_amx.cc AMX)
