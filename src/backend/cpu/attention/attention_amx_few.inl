// A few rows of a tile by vector instructions, with the bits of tdpbf16ps; attention_amx.cc says in what order they
// add. Included inside its anonymous namespace.
constexpr int kFewRows = 6;

SX_INLINE Vec widened(const uint16_t* x) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return even_of(_mm512_maskz_cvtepu16_epi32(0xffff, v));
}

// The elements of 32 of kCount rows as floats: row i's even ones to[i][0 .. 16), its odd ones to[i][16 .. 32).
template <int kCount>
SX_INLINE void split(const uint16_t (*from)[kInner], float (*to)[kInner]) {
  for (int i = 0; i < kCount; ++i) {
    const __m512i x = _mm512_loadu_si512(from[i]);
    store(to[i], even_of(x));
    store(to[i] + 16, odd_of(x));
  }
}

// s[row][position] = q . k, of a block as the store has it.
template <int kCount>
SX_INLINE void scores_of(const FoldArgs& a, Work& work) {
  const auto* k = reinterpret_cast<const uint16_t*>(a.keys);
  const auto* ahead = reinterpret_cast<const char*>(a.values);
  const auto* q = reinterpret_cast<const uint16_t(*)[kInner]>(a.query);
  alignas(64) float factors[kMaxHeadDim / kInner][kCount][kInner];
  const int steps = steps_of(a.padded);
  for (int i = 0; i < steps; ++i) split<kCount>(q + i * kRows, factors[i]);
  for (int t = 0; t < kBlock; t += 16) {
    Vec sum[kCount];
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) sum[r] = zero();
    for (int i = 0; i < steps; ++i) {
      Vec even[kCount], odd[kCount];
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) even[r] = odd[r] = zero();
      const int pairs = a.padded - i * kInner < kInner ? (a.padded - i * kInner) / 2 : kInner / 2;
      for (int d = 0; d < pairs; ++d, k += 32, ahead += 64) {
        __builtin_prefetch(ahead, 0, 3);
        const __m512i x = in_pairs(_mm512_loadu_si512(k));
        const Vec x0 = even_of(x), x1 = odd_of(x);
#pragma GCC unroll 6
        for (int r = 0; r < kCount; ++r) {
          even[r] = fma(set1(factors[i][r][d]), x0, even[r]);
          odd[r] = fma(set1(factors[i][r][16 + d]), x1, odd[r]);
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) sum[r] = add(sum[r], add(even[r], odd[r]));
    }
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) store(work.s[r] + t, sum[r]);
  }
}

// o += w V, of a block as the store has it. Of 32 neighbouring channels the even and the odd ones are summed apart.
template <int kCount>
SX_INLINE void add_values_of(const FoldArgs& a, const Work& work) {
  const auto* v = reinterpret_cast<const uint16_t*>(a.values);
  const auto* ahead = reinterpret_cast<const char*>(a.next_keys ? a.next_keys : a.values);
  alignas(64) static constexpr uint32_t kLow[16] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  float* const o = a.state + kOutputsAt;
  for (int h = 0; h < 2; ++h, v += kInner * a.padded) {
    alignas(64) float w[kCount][kInner];
    split<kCount>(work.w[h], w);
    int c = 0;
    for (; c + 32 <= a.padded; c += 32) {
      Vec sum[2][2][kCount];  // [position % 2][channel % 2]
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) sum[0][0][r] = sum[0][1][r] = sum[1][0][r] = sum[1][1][r] = zero();
      const uint16_t* x = v + c;
      for (int p = 0; p < 16; ++p, x += 2 * a.padded, ahead += 128) {
        __builtin_prefetch(ahead, 0, 3);
        __builtin_prefetch(ahead + 64, 0, 3);
        const __m512i first = _mm512_loadu_si512(x), second = _mm512_loadu_si512(x + a.padded);
        const Vec x00 = even_of(first), x01 = odd_of(first), x10 = even_of(second), x11 = odd_of(second);
#pragma GCC unroll 6
        for (int r = 0; r < kCount; ++r) {
          const Vec w0 = set1(w[r][p]), w1 = set1(w[r][16 + p]);
          sum[0][0][r] = fma(w0, x00, sum[0][0][r]);
          sum[0][1][r] = fma(w0, x01, sum[0][1][r]);
          sum[1][0][r] = fma(w1, x10, sum[1][0][r]);
          sum[1][1][r] = fma(w1, x11, sum[1][1][r]);
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) {
        const Vec even = add(sum[0][0][r], sum[1][0][r]), odd = add(sum[0][1][r], sum[1][1][r]);
        float* to = o + r * a.padded + c;
        store(to, add(load(to), _mm512_maskz_permutex2var_ps(0xffff, even, low, odd)));
        store(to + 16, add(load(to + 16), _mm512_maskz_permutex2var_ps(0xffff, even, high, odd)));
      }
    }
    for (; c < a.padded; c += 16)
      for (int r = 0; r < kCount; ++r) {
        Vec even = zero(), odd = zero();
        const uint16_t* x = v + c;
        for (int p = 0; p < 16; ++p, x += 2 * a.padded) {
          even = fma(set1(w[r][p]), widened(x), even);
          odd = fma(set1(w[r][16 + p]), widened(x + a.padded), odd);
        }
        float* to = o + r * a.padded + c;
        store(to, add(load(to), add(even, odd)));
      }
  }
}

template <int kCount>
void fold_few(const FoldArgs& a) {
  Work work;
  scores_of<kCount>(a, work);
  raise_maxima(a, work);
  rescale(a, work.alpha);
  weigh(a, work);
  add_values_of<kCount>(a, work);
}
static_assert(kFewRows == 6);
constexpr void (*kFoldFew[kFewRows])(const FoldArgs&) = {fold_few<1>, fold_few<2>, fold_few<3>,
                                                         fold_few<4>, fold_few<5>, fold_few<6>};
