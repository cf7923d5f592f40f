// Register tiles of weights whose activations have one scale per 64 inner values (linear_i8mm_super.inl, which
// includes this and has the order of reduction). Everything is one instruction per asm statement: the compiler
// allocates registers and may not reorder volatile statements, so the order of instructions is the one written here.
// With intrinsics g++ 12 moves loads until sums spill (260 Gop/s against 311 for the tile of 8 outputs x 6 rows).
//
// On Neoverse-V1 vector instructions bind, 3.3 per cycle in such mixes. A tile of 2 outputs x 2 rows x 64 takes 12 of
// them (8 smmla, 1 fmul, 3 fmls), and two more for types with offsets; with a scale per 32 activations it takes 16.

typedef int8x16_t AnyVector __attribute__((may_alias));
typedef int64_t AnyEight __attribute__((may_alias));

SX_ALWAYS int8x16_t ldr_q(const void* p) {
  int8x16_t v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*static_cast<const AnyVector*>(p)));
  return v;
}
SX_ALWAYS float32x4_t ldr_f(const void* p) { return vreinterpretq_f32_s8(ldr_q(p)); }
SX_ALWAYS float16x8_t ldr_h(const void* p) { return vreinterpretq_f16_s8(ldr_q(p)); }
// Two vectors at a constant byte offset within an object.
template <class V, class Object>
SX_ALWAYS void ldp_q(V& a, V& b, const Object& object, int offset) {
  asm volatile("ldp %q0, %q1, [%2, %3]" : "=w"(a), "=w"(b) : "r"(&object), "i"(offset), "m"(object));
}
SX_ALWAYS void smmla(int32x4_t& s, int8x16_t a, int8x16_t b) {
  asm volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(s) : "w"(a), "w"(b));
}
SX_ALWAYS void sdot(int32x4_t& s, int8x16_t a, int8x16_t b) {
  asm volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(s) : "w"(a), "w"(b));
}
SX_ALWAYS int8x16_t ld1r_8(const int8_t* p) {  // with intrinsics g++ loads several and then spends a dup on each
  int8x16_t v;
  asm volatile("ld1r {%0.2d}, %1" : "=w"(v) : "Q"(*reinterpret_cast<const AnyEight*>(p)));
  return v;
}
SX_ALWAYS float16x8_t ld1r_2(const float16_t* p) {
  float16x8_t v;
  asm volatile("ld1r {%0.8h}, %1" : "=w"(v) : "Q"(*p));
  return v;
}
SX_ALWAYS float32x4_t addp(int32x4_t a, int32x4_t b) {
  float32x4_t sum;
  asm volatile("addp %0.4s, %1.4s, %2.4s" : "=w"(sum) : "w"(a), "w"(b));
  return sum;
}
SX_ALWAYS float32x4_t fmul(float32x4_t a, float32x4_t b) {
  float32x4_t p;
  asm volatile("fmul %0.4s, %1.4s, %2.4s" : "=w"(p) : "w"(a), "w"(b));
  return p;
}
SX_ALWAYS void fmls(float32x4_t& p, float32x4_t a, float32x4_t b) {
  asm volatile("fmls %0.4s, %1.4s, %2.4s" : "+w"(p) : "w"(a), "w"(b));
}
// p -= a b of the lower or the upper four halves, exact before it is subtracted.
SX_ALWAYS void fmlsl(float32x4_t& p, float16x8_t a, float16x8_t b, bool upper) {
  if (upper) asm volatile("fmlsl2 %0.4s, %1.4h, %2.4h" : "+w"(p) : "w"(a), "w"(b));
  else asm volatile("fmlsl %0.4s, %1.4h, %2.4h" : "+w"(p) : "w"(a), "w"(b));
}
SX_ALWAYS void copy(int32x4_t& s, int32x4_t from) { asm volatile("mov %0.16b, %1.16b" : "=w"(s) : "w"(from)); }
SX_ALWAYS int8x16_t shl_4(int8x16_t w) {
  int8x16_t u;
  asm volatile("shl %0.16b, %1.16b, #4" : "=w"(u) : "w"(w));
  return u;
}
SX_ALWAYS int8x16_t shl_2(int8x16_t w) {
  int8x16_t u;
  asm volatile("shl %0.16b, %1.16b, #2" : "=w"(u) : "w"(w));
  return u;
}
// Bits of w, shifted, replace those of `into` from bit kBy on.
template <int kBy>
SX_ALWAYS void insert_from(int8x16_t& into, int8x16_t w) {
  asm volatile("sli %0.16b, %1.16b, %2" : "+w"(into) : "w"(w), "i"(kBy));
}
SX_ALWAYS int8x16_t masked(int8x16_t w, int8x16_t mask) {
  int8x16_t u;
  asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(u) : "w"(w), "w"(mask));
  return u;
}
SX_ALWAYS void prefetch_l1(const void* p, int offset) {
  asm volatile("prfm pldl1keep, [%0, %1]" ::"r"(p), "i"(offset));
}
SX_ALWAYS void prefetch_stream(const void* p, int offset) {
  asm volatile("prfm pldl1strm, [%0, %1]" ::"r"(p), "i"(offset));
}
SX_ALWAYS float32x4_t as_float(int32x4_t x) { return vreinterpretq_f32_s32(x); }

// keep -= p dx, in memory: registers are full of sums. The load is volatile lest it moves up.
SX_ALWAYS void fold(float* keep, float32x4_t p, float32x4_t dx) {
  float32x4_t sum = ldr_f(keep);
  fmls(sum, p, dx);
  vst1q_f32(keep, sum);
}

// ---- operands --------------------------------------------------------------------------------------------------------
template <class F>
SX_ALWAYS int8x16_t load_mask() {
  return ldr_q(F::kStore == Store::kSix ? kUpperSix : kHighNibbles);
}

// Operands 2h and 2h + 1 of a pair of outputs as they lie in memory (nibbles: both in `first`) or ready.
struct Operands {
  int8x16_t first, second;
};
template <class F>
SX_ALWAYS Operands load_operands(const uint8_t* pair, int h, int8x16_t mask) {
  Operands o;
  if constexpr (F::kStore == Store::kNibble) {
    o.first = o.second = ldr_q(pair + 16 * h);
  } else if constexpr (F::kStore == Store::kByte) {
    o.first = ldr_q(pair + 32 * h), o.second = ldr_q(pair + 32 * h + 16);
  } else if (h == 0) {
    o.first = masked(ldr_q(pair), mask), o.second = masked(ldr_q(pair + 16), mask);
  } else {
    const int8x16_t v0 = ldr_q(pair), v1 = ldr_q(pair + 16), v2 = ldr_q(pair + 32);
    o.second = shl_2(v2);
    insert_from<4>(o.second, v1);
    o.first = masked(v2, mask);
    insert_from<6>(o.second, v0);
  }
  return o;
}
template <class F>
SX_ALWAYS int8x16_t first_operand(const Operands& o) {
  return F::kStore == Store::kNibble ? shl_4(o.first) : o.first;
}
template <class F>
SX_ALWAYS int8x16_t second_operand(const Operands& o, int8x16_t mask) {
  return F::kStore == Store::kNibble ? masked(o.second, mask) : o.second;
}

// ---- many rows: weights unpacked into a panel ------------------------------------------------------------------------
// 8 outputs x R pairs of rows over `blocks` blocks. keep: [4 pairs of outputs][R] vectors, added to. x:
// [super][kTilePairs].
template <class F, int R>
SX_KERNEL void panel_tile(float* keep, const PanelSuper<F>* panel, const ActUnit* x, int blocks) {
  constexpr int kBlockBytes = static_cast<int>(sizeof(PanelBlock<F>));
  int32x4_t s[4][R];
  for (int super = 0; blocks > 0; blocks -= kSuperBlocks, ++super, ++panel, x += kTilePairs) {
    float32x4_t p[4][R], d[4];
    if (super % kRestart == 0) {
      const int32x4_t start = vreinterpretq_s32_s8(ldr_q(kMagicBits));
#pragma GCC unroll 12
      for (int i = 0; i < 4 * R; ++i) copy(s[i / R][i % R], start);
    }
    ldp_q(d[0], d[1], *panel, kSuperBlocks * kBlockBytes), ldp_q(d[2], d[3], *panel, kSuperBlocks * kBlockBytes + 32);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 3
      for (int r = 0; r < R; ++r) p[i][r] = fmul(as_float(s[i][r]), d[i]);
    const PanelBlock<F>* w = panel->block;
    const int8_t* a = x->q[0][0];
    const float16_t* sums = x->sum[0];
    auto block = [&](int b) __attribute__((always_inline)) {
      if constexpr (R == kTilePairs)  // what the tile reads in two thousand cycles
#pragma GCC unroll 4
        for (int l = 0; l < 4; ++l) prefetch_l1(x, kUnitsAhead + 256 * b + 64 * l);
      int8x16_t q[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        ldp_q(q[0], q[1], *w, 64 * j), ldp_q(q[2], q[3], *w, 64 * j + 32);
#pragma GCC unroll 3
        for (int r = 0; r < R; ++r) {
          const int8x16_t v = ldr_q(a + static_cast<size_t>(r) * sizeof(ActUnit) + 16 * j);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) smmla(s[i][r], q[i], v);
        }
        if (j == 3 || (F::kHalves == 2 && j == 1)) {
          const int at = 256 + (F::kHalves == 2 && j == 3 ? 64 : 0);
          float32x4_t e[4];
          ldp_q(e[0], e[1], *w, at), ldp_q(e[2], e[3], *w, at + 32);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i)
#pragma GCC unroll 3
            for (int r = 0; r < R; ++r) fmls(p[i][r], as_float(s[i][r]), e[i]);
        }
      }
      if constexpr (F::kOffset) {
        float16x8_t m[2];
        ldp_q(m[0], m[1], *w, 256 + 64 * F::kHalves);
#pragma GCC unroll 3
        for (int r = 0; r < R; ++r) {
          const float16x8_t v = ldr_h(sums + static_cast<size_t>(r) * (sizeof(ActUnit) / 2));
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) fmlsl(p[i][r], m[i / 2], v, i % 2);
        }
      }
      ++w, a += 64, sums += 8;
    };
    if (blocks >= kSuperBlocks) {
#pragma GCC unroll 8
      for (int b = 0; b < kSuperBlocks; ++b) block(b);
    } else {
#pragma GCC unroll 1
      for (int b = 0; b < blocks; ++b) block(0);
    }
#pragma GCC unroll 3
    for (int r = 0; r < R; ++r) {
      const float32x4_t dx = ldr_f(x[r].dx);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) fold(keep + 4 * (i * R + r), p[i][r], dx);
    }
  }
}

// ---- few rows: weights unpacked in registers -------------------------------------------------------------------------
// The scales (or offsets) of 4 or 8 outputs.
template <int V>
SX_ALWAYS void convert_halves(float32x4_t* d, const uint8_t* p) {
  if constexpr (V == 1) {
    float16x4_t h;
    asm volatile("ldr %d0, %1" : "=w"(h) : "m"(*reinterpret_cast<const AnyEight*>(p)));
    asm volatile("fcvtl %0.4s, %1.4h" : "=w"(d[0]) : "w"(h));
  } else {
    const int8x16_t h = ldr_q(p);
    asm volatile("fcvtl %0.4s, %1.4h" : "=w"(d[0]) : "w"(h));
    asm volatile("fcvtl2 %0.4s, %1.8h" : "=w"(d[1]) : "w"(h));
  }
}

// Offsets of 4 or 8 outputs as [o0 o0 o1 o1 o2 o2 o3 o3].
template <int V>
SX_ALWAYS void load_offsets(float16x8_t* m, const uint8_t* p) {
  if constexpr (V == 1) {
    float16x8_t h;
    asm volatile("ldr %d0, %1" : "=w"(h) : "m"(*reinterpret_cast<const AnyEight*>(p)));
    m[0] = vzip1q_f16(h, h);
  } else {
    const float16x8_t h = ldr_h(p);
    m[0] = vzip1q_f16(h, h), m[1] = vzip2q_f16(h, h);
  }
}

// P pairs of outputs (4: a group; 2: half of one) of G groups, `step` apart, x R pairs of rows. scales: of these
// outputs in the first block, quants likewise. keep: [G][P][R] vectors, added to. x: [super][pairs].
template <class F, int P, int R, int G>
SX_KERNEL void direct_tile(float* keep, const uint8_t* scales, const uint8_t* quants, size_t step, const ActUnit* x,
                           size_t pairs, int blocks) {
  constexpr int V = P / 2;  // vectors of scales
  const int8x16_t mask = load_mask<F>();
  int32x4_t s[G][P][R];
  for (int super = 0; blocks > 0; blocks -= kSuperBlocks, ++super, x += pairs) {
    float32x4_t p[G][P][R], d0[G][V], d1[G][V];
    if (super % kRestart == 0) {
      const int32x4_t start = vreinterpretq_s32_s8(ldr_q(kMagicBits));
#pragma GCC unroll 8
      for (int i = 0; i < G * P * R; ++i) copy(s[i / (P * R)][i / R % P][i % R], start);
    }
#pragma GCC unroll 2
    for (int t = 0; t < G; ++t) {
      convert_halves<V>(d0[t], scales + static_cast<size_t>(t) * step);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) {
        const float32x4_t d = twice(d0[t][i / 2], i % 2);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) p[t][i][r] = fmul(as_float(s[t][i][r]), d);
      }
    }
    const int8_t* a = x->q[0][0];
    const float16_t* sums = x->sum[0];
    // One block, whose scales are in `cur`; leaves the next block's in `next` (two scales to a block: in `cur`
    // again) unless it is the super-block's last.
    auto block = [&](float32x4_t(*cur)[V], float32x4_t(*next)[V], bool last, bool odd) __attribute__((always_inline)) {
      if constexpr (R >= 3) {  // F::kBytes for each block
        const int line = odd ? F::kAheadEven * 64 - F::kBytes : 0;
#pragma GCC unroll 5
        for (int l = 0; l < F::kAheadEven; ++l)
          if (!odd || l < F::kAheadOdd) prefetch_stream(quants, kStreamAhead + line + 64 * l);
      }
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        int8x16_t low[R], high[R];
        if constexpr (R == 1) low[0] = ldr_q(a + 32 * h), high[0] = ldr_q(a + 32 * h + 16);
#pragma GCC unroll 2
        for (int t = 0; t < G; ++t) {
          Operands w[P];
#pragma GCC unroll 4
          for (int i = 0; i < P; ++i)
            w[i] = load_operands<F>(quants + static_cast<size_t>(t) * step + F::kPairBytes * i, h, mask);
          if constexpr (R > 1)
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) low[r] = ldr_q(a + static_cast<size_t>(r) * sizeof(ActUnit) + 32 * h);
          if constexpr (P == 2) {
            const int8x16_t u0 = first_operand<F>(w[0]), u1 = first_operand<F>(w[1]);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) smmla(s[t][0][r], u0, low[r]), smmla(s[t][1][r], u1, low[r]);
          } else {
#pragma GCC unroll 4
            for (int i = 0; i < P; ++i) {
              const int8x16_t u = first_operand<F>(w[i]);
#pragma GCC unroll 4
              for (int r = 0; r < R; ++r) smmla(s[t][i][r], u, low[r]);
            }
          }
#pragma GCC unroll 4
          for (int i = 0; i < P; ++i) w[i].second = second_operand<F>(w[i], mask);
          if constexpr (R > 1)
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) high[r] = ldr_q(a + static_cast<size_t>(r) * sizeof(ActUnit) + 32 * h + 16);
          if constexpr (P == 2) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
              smmla(s[t][0][r], w[0].second, high[r]), smmla(s[t][1][r], w[1].second, high[r]);
          } else {
#pragma GCC unroll 4
            for (int i = 0; i < P; ++i)
#pragma GCC unroll 4
              for (int r = 0; r < R; ++r) smmla(s[t][i][r], w[i].second, high[r]);
          }
        }
        if (h == 0 && F::kHalves == 1) continue;
        float32x4_t(*now)[V] = F::kHalves == 2 && h ? next : cur, (*then)[V] = F::kHalves == 2 && h ? cur : next;
        const bool end = last && h == 1;
#pragma GCC unroll 2
        for (int t = 0; t < G; ++t) {
          const uint8_t* own = scales + static_cast<size_t>(t) * step;
          if (!end) convert_halves<V>(then[t], own + (h ? F::kBytes : 16));
#pragma GCC unroll 4
          for (int i = 0; i < P; ++i) {
            if (i % 2 == 0 && !end) now[t][i / 2] = vsubq_f32(now[t][i / 2], then[t][i / 2]);
            const float32x4_t e = twice(now[t][i / 2], i % 2);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) fmls(p[t][i][r], as_float(s[t][i][r]), e);
          }
          if constexpr (F::kOffset) {
            float16x8_t m[V];
            load_offsets<V>(m, own + F::kOffsetsAt);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
              const float16x8_t sum = ldr_h(sums + static_cast<size_t>(r) * (sizeof(ActUnit) / 2));
#pragma GCC unroll 4
              for (int i = 0; i < P; ++i) fmlsl(p[t][i][r], m[i / 2], sum, i % 2);
            }
          }
        }
      }
      scales += F::kBytes, quants += F::kBytes, a += 64, sums += 8;
    };
    if (blocks >= kSuperBlocks) {
#pragma GCC unroll 8
      for (int b = 0; b < kSuperBlocks; ++b) {
        const bool swap = F::kHalves == 1 && b % 2;
        block(swap ? d1 : d0, swap ? d0 : d1, b + 1 == kSuperBlocks, b % 2);
      }
    } else {  // a row's shorter last one
      static_assert(kSuperBlocks == 2);
      block(d0, d1, true, false);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float32x4_t dx = ldr_f(x[r].dx);
#pragma GCC unroll 2
      for (int t = 0; t < G; ++t)
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) fold(keep + 4 * ((t * P + i) * R + r), p[t][i][r], dx);
    }
  }
}

// ---- one row ---------------------------------------------------------------------------------------------------------
// sdot over the same layout, neighbours added in integers, so lanes are four outputs. G groups far apart in memory are
// read together: one sequential stream per thread reads 54 GB/s (30 on a busy machine), two read 65-70.
template <class F, int G>
SX_KERNEL void row_tile(const Output* outputs, const uint8_t* g, size_t step, const RowUnit* x, int blocks) {
  const int8x16_t mask = load_mask<F>();
  const int32x4_t start = vreinterpretq_s32_s8(ldr_q(kMagicPair));
  const float32x4_t magic = ldr_f(kMagicBits);
  float32x4_t acc[G][2];
  for (int t = 0; t < G; ++t) acc[t][0] = acc[t][1] = vdupq_n_f32(0);
  int32x4_t s[G][4];
  float32x4_t sum[G][2];  // of neighbours in s
  for (int super = 0; blocks > 0; blocks -= kSuperBlocks, ++super, ++x) {
    float32x4_t p[G][2], d0[G][2], d1[G][2];
    if (super % kRestart == 0)
#pragma GCC unroll 2
      for (int t = 0; t < G; ++t) {
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = start;
        sum[t][0] = sum[t][1] = magic;
      }
#pragma GCC unroll 2
    for (int t = 0; t < G; ++t) {
      convert_halves<2>(d0[t], g + static_cast<size_t>(t) * step);
      p[t][0] = fmul(sum[t][0], d0[t][0]), p[t][1] = fmul(sum[t][1], d0[t][1]);
    }
    const int8_t* a = x->q[0];
    const float16_t* sums = x->sum;
    auto block = [&](float32x4_t(*cur)[2], float32x4_t(*next)[2], bool last) __attribute__((always_inline)) {
      // Scales before the multiplications, which hide the latency of conversions.
      auto differences = [&](float32x4_t(*now)[2], float32x4_t(*then)[2], size_t at) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int t = 0; t < G; ++t) {
          convert_halves<2>(then[t], g + static_cast<size_t>(t) * step + at);
          now[t][0] = vsubq_f32(now[t][0], then[t][0]), now[t][1] = vsubq_f32(now[t][1], then[t][1]);
        }
      };
      auto add = [&](float32x4_t(*now)[2]) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int t = 0; t < G; ++t) {
          sum[t][0] = addp(s[t][0], s[t][1]), sum[t][1] = addp(s[t][2], s[t][3]);
          fmls(p[t][0], sum[t][0], now[t][0]), fmls(p[t][1], sum[t][1], now[t][1]);
        }
      };
      if (F::kHalves == 2) differences(cur, next, 16);
      else if (!last) differences(cur, next, F::kBytes);
      int8x16_t v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) v[j] = ld1r_8(a + 8 * j);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 2
        for (int t = 0; t < G; ++t) {
          const uint8_t* q = g + static_cast<size_t>(t) * step + F::kQuantsAt;
          Operands w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) w[i] = load_operands<F>(q + F::kPairBytes * i, h, mask);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) sdot(s[t][i], first_operand<F>(w[i]), v[2 * h]);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) sdot(s[t][i], second_operand<F>(w[i], mask), v[2 * h + 1]);
        }
        if (F::kHalves == 2 && h == 0) {
          add(cur);
          if (!last) differences(next, cur, F::kBytes);
        }
      }
      add(F::kHalves == 2 ? next : cur);
      if constexpr (F::kOffset)
#pragma GCC unroll 2
        for (int t = 0; t < G; ++t) {
          const float16x8_t m = ldr_h(g + static_cast<size_t>(t) * step + F::kOffsetsAt), total = ld1r_2(sums);
          fmlsl(p[t][0], m, total, false), fmlsl(p[t][1], m, total, true);
        }
      g += F::kBytes, a += 32, ++sums;
    };
    if (blocks >= kSuperBlocks) {
#pragma GCC unroll 8
      for (int b = 0; b < kSuperBlocks; ++b) {
        const bool swap = F::kHalves == 1 && b % 2;
        block(swap ? d1 : d0, swap ? d0 : d1, b + 1 == kSuperBlocks);
      }
    } else {
      block(d0, d1, true);
    }
    const float32x4_t dx = vdupq_n_f32(x->dx);
#pragma GCC unroll 2
    for (int t = 0; t < G; ++t)
      acc[t][0] = vfmsq_f32(acc[t][0], p[t][0], dx), acc[t][1] = vfmsq_f32(acc[t][1], p[t][1], dx);
  }
#pragma GCC unroll 2
  for (int t = 0; t < G; ++t) finish(outputs[t], 0, acc[t][0], acc[t][1]);
}
