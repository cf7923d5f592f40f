// Attention and kv_score() in f32 arithmetic on Arm: every KV type at the dot-product level, f32 and f16 at the
// matrix level.
#define SX_ISA_NAMESPACE neon
#include "backend/cpu/attention_portable.inl"
#include "backend/cpu/kv_score_portable.inl"
