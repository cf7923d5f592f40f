// Attention and kv_score() in f32 arithmetic on x86-64 with AVX-512.
#define SX_ISA_NAMESPACE avx512
#include "backend/cpu/attention_portable.inl"
#include "backend/cpu/kv_score_portable.inl"
