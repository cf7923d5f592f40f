// Attention and kv_score() for any machine; also what the other levels are tested against.
#define SX_ISA_NAMESPACE generic
#define SX_SIMD_GENERIC 1
#include "backend/cpu/attention_portable.inl"
#include "backend/cpu/kv_score_portable.inl"
