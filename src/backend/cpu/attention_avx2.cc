// Attention and kv_score() in f32 arithmetic on x86-64 with AVX2, FMA and F16C.
#define SX_ISA_NAMESPACE avx2
#include "backend/cpu/attention_portable.inl"
#include "backend/cpu/kv_score_portable.inl"
