// The skinny i8mm kernels: one and two rows, where weights are streamed once and every byte is used at once. Included
// by linear_neon_i8mm.cc inside its namespace, which has the layout and the helpers.

// ---- one row ---------------------------------------------------------------------------------------------------------
// sdot over the same layout, neighbours added in integers, so lanes are four outputs. S groups far apart in memory are
// read together: one sequential stream per thread reads 54 GB/s (30 on a busy machine), two read 65-70.

// Adds the dot products over inner values 16h..16h+15 to the sums of S groups: sums [group][pair of outputs]. Written
// so that neighbouring instructions belong to different sums.
template <class F, int S>
SX_ALWAYS void dots_1(const uint8_t* g, size_t step, const int8x16_t* a, int h, int32x4_t (*s)[4]) {
#pragma GCC unroll 4
  for (int t = 0; t < S; ++t) {
    const uint8_t* q = g + static_cast<size_t>(t) * step + F::kQuantsAt;
#pragma GCC unroll 2
    for (int j = 2 * h; j < 2 * h + 2; ++j)
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) s[t][p] = vdotq_s32(s[t][p], load_q(q + 64 * p + 16 * j), a[j]);
  }
}

template <class F, int S>
SX_KERNEL void group_1(const Output* outputs, const uint8_t* g, size_t step, const ActBlock* x, int blocks) {
  float32x4_t acc[S][2];
#pragma GCC unroll 4
  for (int t = 0; t < S; ++t) acc[t][0] = acc[t][1] = vdupq_n_f32(0);
#pragma GCC unroll 1
  for (int k = 0; k < blocks; ++k, g += F::kBytes, ++x) {
    int32x4_t s[F::kHalves][S][4];
    int8x16_t a[4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const int part = F::kHalves == 2 ? h : 0;
      if (h == 0 || F::kHalves == 2)
#pragma GCC unroll 16
        for (int i = 0; i < 4 * S; ++i) s[part][i / 4][i % 4] = vdupq_n_s32(0);
      for (int j = 2 * h; j < 2 * h + 2; ++j)
        a[j] = vreinterpretq_s8_s64(vld1q_dup_s64(reinterpret_cast<const int64_t*>(x->q[j])));
      dots_1<F, S>(g, step, a, h, s[part]);
    }
    const float32x4_t dx = vld1q_dup_f32(x->dx);
#pragma GCC unroll 2
    for (int h = 0; h < F::kHalves; ++h) {
      float32x4_t sx = vld1q_dup_f32(x->sx);
      if constexpr (F::kOffset && F::kHalves == 2) {
        const int32x4_t q = vdotq_s32(vdotq_s32(vdupq_n_s32(0), a[2 * h], vdupq_n_s8(1)), a[2 * h + 1], vdupq_n_s8(1));
        sx = vmulq_f32(vcvtq_f32_s32(vpaddq_s32(q, q)), dx);
      }
      float32x4_t d[S][2], m[S][2];
#pragma GCC unroll 4
      for (int t = 0; t < S; ++t) load_scales<F>(g + static_cast<size_t>(t) * step + h * F::kScaleBytes, d[t]);
#pragma GCC unroll 4
      for (int t = 0; t < S; ++t) {
        const int32x4_t s0 = vpaddq_s32(s[h][t][0], s[h][t][1]), s1 = vpaddq_s32(s[h][t][2], s[h][t][3]);
        const float32x4_t f0 = vcvtq_f32_s32(s0), f1 = vcvtq_f32_s32(s1);
        acc[t][0] = vfmaq_f32(acc[t][0], f0, vmulq_f32(d[t][0], dx));
        acc[t][1] = vfmaq_f32(acc[t][1], f1, vmulq_f32(d[t][1], dx));
      }
      if constexpr (F::kOffset) {
#pragma GCC unroll 4
        for (int t = 0; t < S; ++t)
          load_scales<F>(g + static_cast<size_t>(t) * step + F::kOffsetsAt + h * F::kScaleBytes, m[t]);
#pragma GCC unroll 4
        for (int t = 0; t < S; ++t)
          acc[t][0] = vfmaq_f32(acc[t][0], m[t][0], sx), acc[t][1] = vfmaq_f32(acc[t][1], m[t][1], sx);
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < S; ++t) finish(outputs[t], 0, acc[t][0], acc[t][1]);
}

// ---- two rows ---------------------------------------------------------------------------------------------------------
// Two rows, two groups far apart in memory at once: eight sums in flight instead of four, and two streams (see
// group_1). The arithmetic of one output is that of group_pairs<F, 1, true>.
template <class F>
SX_KERNEL void group_pair_2(const Output* outputs, int rows, const uint8_t* g, size_t step, const ActBlock* x,
                            int blocks) {
  float32x4_t acc[2][4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) acc[i / 4][i % 4] = vdupq_n_f32(0);
#pragma GCC unroll 1
  for (int k = 0; k < blocks; ++k, g += F::kBytes, ++x) {
    int32x4_t s[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int8x16_t a = vld1q_s8(x->q[j]);
#pragma GCC unroll 2
      for (int t = 0; t < 2; ++t) {
        const uint8_t* q = g + static_cast<size_t>(t) * step + F::kQuantsAt;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          s[t][i] = vmmlaq_s32(j == 0 ? vdupq_n_s32(0) : s[t][i], load_q(q + 64 * i + 16 * j), a);
      }
    }
    const float32x4_t dx = vld1q_f32(x->dx);
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      const uint8_t* gt = g + static_cast<size_t>(t) * step;
      float32x4_t d[2], m[2];
      load_scales<F>(gt, d);
      if constexpr (F::kOffset) load_scales<F>(gt + F::kOffsetsAt, m);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        acc[t][i] = vfmaq_f32(acc[t][i], vcvtq_f32_s32(s[t][i]), vmulq_f32(twice(d[i / 2], i % 2), dx));
      }
      if constexpr (F::kOffset) {
        const float32x4_t sx = vld1q_f32(x->sx);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) acc[t][i] = vfmaq_f32(acc[t][i], twice(m[i / 2], i % 2), sx);
      }
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < 2; ++t) {
    finish(outputs[t], 0, vuzp1q_f32(acc[t][0], acc[t][1]), vuzp1q_f32(acc[t][2], acc[t][3]));
    if (rows > 1) finish(outputs[t], 1, vuzp2q_f32(acc[t][0], acc[t][1]), vuzp2q_f32(acc[t][2], acc[t][3]));
  }
}
