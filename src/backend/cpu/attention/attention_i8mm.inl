// Shared by the two kernels for neon-i8mm: the tile's state in the 2x2 layout of the matrix instructions, the softmax
// step, and what is not hot (packing, merging, finishing). Included inside sx::cpu::neon_i8mm's anonymous namespace.
//
// o is [3 row pairs][padded / 2 channel pairs][2 rows][2 channels].

constexpr float kEmpty = -1e30f;  // m of a row that has seen nothing; masked scores are -infinity, which is below it
#define SX_KERNEL __attribute__((noinline))  // inlined together, g++ 12 spills the accumulators

struct State {
  float m[8], l[8];
  float o[1];  // [3][padded / 2][4]
};
inline State& as_state(float* p) { return *reinterpret_cast<State*>(p); }
inline float* pair_of(State& r, int pair, int padded) { return r.o + pair * padded * 2; }

// 2^t for t <= 0 (relative error 4e-6); anything under -127 gives exactly zero.
inline float32x4_t exp2_neg(float32x4_t t) {
  const float32x4_t magic = vdupq_n_f32(12582912.f);
  t = vmaxq_f32(t, vdupq_n_f32(-127.f));
  float32x4_t r = vaddq_f32(t, magic);
  float32x4_t f = vsubq_f32(t, vsubq_f32(r, magic));
  float32x4_t p = vfmaq_f32(vdupq_n_f32(0.05550411f), f, vdupq_n_f32(0.00961813f));
  p = vfmaq_f32(vdupq_n_f32(0.24022651f), p, f);
  p = vfmaq_f32(vdupq_n_f32(0.69314718f), p, f);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(r), 23)));
}

// Caps `count` scores softly.
SX_KERNEL void cap_scores(float* s, int count, SoftCap cap) {
  const float32x4_t one = vdupq_n_f32(1), sign = vdupq_n_f32(-0.f);
  for (int j = 0; j < count; j += 4) {
    const float32x4_t x = vld1q_f32(s + j), e = exp2_neg(vmulq_n_f32(vabsq_f32(x), -cap.steep));
    const float32x4_t y = vmulq_n_f32(vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e)), cap.limit);
    vst1q_f32(s + j, vbslq_f32(vreinterpretq_u32_f32(sign), x, y));
  }
}

template <int P>
inline void rescale(State& r, const float* alpha, int padded) {
  for (int i = 0; i < P; ++i) {
    const float x = alpha[2 * i], y = alpha[2 * i + 1];
    // Multiplying by one is exact and an empty row is all zeros, so skipping changes no bit.
    if ((x == 1 || r.l[2 * i] == 0) && (y == 1 || r.l[2 * i + 1] == 0)) continue;
    const float32x4_t f = vcombine_f32(vdup_n_f32(x), vdup_n_f32(y)), none = vdupq_n_f32(0);
    float* o = pair_of(r, i, padded);
    // Adding +0 turns -0 into +0: the sign of a zero would otherwise depend on masked values (-0 + 0 * v).
    for (int j = 0; j < padded * 2; j += 4) vst1q_f32(o + j, vaddq_f32(vmulq_f32(vld1q_f32(o + j), f), none));
  }
}

void copy_row(float* to, int to_row, const float* from, int from_row, int padded) {
  to[to_row] = from[from_row];
  to[8 + to_row] = from[8 + from_row];
  float* a = to + kStateHead + to_row / 2 * padded * 2 + to_row % 2 * 2;
  const float* b = from + kStateHead + from_row / 2 * padded * 2 + from_row % 2 * 2;
  for (int j = 0; j < padded * 2; j += 4) vst1_f32(a + j, vld1_f32(b + j));
}

// One pair of rows; factors a (into) and b (from) for each.
inline void merge_pair(float* x, const float* y, int count, const float* a, const float* b) {
  const float32x4_t f = vcombine_f32(vdup_n_f32(a[0]), vdup_n_f32(a[1]));
  const float32x4_t g = vcombine_f32(vdup_n_f32(b[0]), vdup_n_f32(b[1]));
  for (int j = 0; j < count; j += 4) vst1q_f32(x + j, vfmaq_f32(vmulq_f32(vld1q_f32(y + j), g), vld1q_f32(x + j), f));
}

void merge(float* into, const float* from, int padded) {
  alignas(16) float a[8], b[8];
  for (int h = 0; h < 8; h += 4) {
    const float32x4_t x = vld1q_f32(into + h), y = vld1q_f32(from + h), m = vmaxq_f32(x, y);
    vst1q_f32(a + h, exp2_neg(vsubq_f32(x, m)));
    vst1q_f32(b + h, exp2_neg(vsubq_f32(y, m)));
  }
  for (int pair = 0; pair < kTileRows / 2; ++pair) {
    const int i = 2 * pair;
    const bool both = into[8 + i] != 0 && into[9 + i] != 0 && from[8 + i] != 0 && from[9 + i] != 0;
    if (both)  // the usual case
      merge_pair(into + kStateHead + i * padded, from + kStateHead + i * padded, padded * 2, a + i, b + i);
    for (int row = i; row < i + 2; ++row) {
      if (from[8 + row] == 0) continue;
      if (into[8 + row] == 0) {
        copy_row(into, row, from, row, padded);
        continue;
      }
      if (!both) {
        float* x = into + kStateHead + pair * padded * 2 + row % 2 * 2;
        const float* y = from + kStateHead + pair * padded * 2 + row % 2 * 2;
        for (int j = 0; j < padded * 2; j += 4)
          vst1_f32(x + j, vfma_n_f32(vmul_n_f32(vld1_f32(y + j), b[row]), vld1_f32(x + j), a[row]));
      }
      into[row] = into[row] > from[row] ? into[row] : from[row];
      into[8 + row] = __builtin_fmaf(into[8 + row], a[row], from[8 + row] * b[row]);
    }
  }
}

void finish(const float* state, int row, float* out, int dim, int padded) {
  const float inverse = 1 / state[8 + row];
  const float* o = state + kStateHead + row / 2 * padded * 2 + row % 2 * 2;
  for (int c = 0; c < dim; c += 2) vst1_f32(out + c, vmul_n_f32(vld1_f32(o + c * 2), inverse));
}

// Folds a block; rows that see nothing of it are kept aside meanwhile.
SX_KERNEL void fold_aside(const FoldArgs& a, void (*fold_all)(const FoldArgs&)) {
  alignas(64) float kept[kStateHead + kTileRows * kMaxHeadDim];
  for (int i = 0; i < a.rows; ++i) copy_row(kept, i, a.state, i, a.padded);
  fold_all(a);
  for (int i = 0; i < a.rows; ++i)
    if (a.end[i] <= a.begin[i]) copy_row(a.state, i, kept, i, a.padded);
}

inline void with_rows_aside(const FoldArgs& a, void (*fold_all)(const FoldArgs&)) {
  bool some = false;
  if (a.end)
    for (int i = 0; i < a.rows; ++i) some = some || a.end[i] <= a.begin[i];
  if (some) fold_aside(a, fold_all);
  else fold_all(a);
}
