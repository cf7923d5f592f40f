// The register tile of the bf16 kernels as assembly: P row pairs x 8 column pairs of bfmmla over `steps` steps of 4
// inner elements, for a whole row of tiles at once. Written out because g++ 12 spills accumulators and loads one
// vector at a time: about 32 bytes per cycle come out of L1, so three row pairs (11 vectors for 24 bfmmla, 6.3 cycles
// measured) just reach the multipliers' rate and fewer do not. Included inside an anonymous namespace.
//
// A (queries or weights): [steps][3 pairs][2 rows][4]; B (keys or values): [steps][8 column pairs][2 columns][4];
// accumulators v8..v31 = [pair][column pair]. `next` is what will be read after B (while K is
// multiplied its V, while V is multiplied the following K), prefetched two lines per step as far as L3: the hardware
// takes it from there. Asked for in one burst, or into L2 or L1, it slows the loop down; or null.

// The macros are aligned by hand.
// clang-format off
#define SX_MMLA(acc, a, b) "bfmmla v" #acc ".4s, v" #a ".8h, v" #b ".8h\n"
#define SX_A1(at) "ldr q0, [%[a], #" #at "]\n"
#define SX_A2(at) "ldp q0, q1, [%[a], #" #at "]\n"
#define SX_A3(at) "ldp q0, q1, [%[a], #" #at "]\n ldr q2, [%[a], #(" #at " + 32)]\n"
#define SX_B(x, y, at) "ldp q" #x ", q" #y ", [%[b], #(" #at ")]\n"
#define SX_COLUMN1(j0, j1, j2, b) SX_MMLA(j0, 0, b)
#define SX_COLUMN2(j0, j1, j2, b) SX_MMLA(j0, 0, b) SX_MMLA(j1, 1, b)
#define SX_COLUMN3(j0, j1, j2, b) SX_MMLA(j0, 0, b) SX_MMLA(j1, 1, b) SX_MMLA(j2, 2, b)

#define SX_STEP(P, a_at, b_at, fetch)                                                        \
  SX_A##P(a_at) SX_B(3, 4, b_at) SX_B(5, 6, b_at + 32)                                       \
  SX_COLUMN##P(8, 16, 24, 3) SX_COLUMN##P(9, 17, 25, 4) SX_B(3, 4, b_at + 64) fetch(b_at)    \
  SX_COLUMN##P(10, 18, 26, 5) SX_COLUMN##P(11, 19, 27, 6) SX_B(5, 6, b_at + 96)              \
  SX_COLUMN##P(12, 20, 28, 3) SX_COLUMN##P(13, 21, 29, 4) SX_COLUMN##P(14, 22, 30, 5) SX_COLUMN##P(15, 23, 31, 6)

#define SX_FETCH(at) "prfm pldl3keep, [%[next], #(" #at ")]\n prfm pldl3keep, [%[next], #(" #at " + 64)]\n"
#define SX_NO_FETCH(at)

#define SX_LOOP(P, fetch, advance)                                                                              \
  "1:\n" SX_STEP(P, 0, 0, fetch) SX_STEP(P, 48, 128, fetch) SX_STEP(P, 96, 256, fetch) SX_STEP(P, 144, 384, fetch) \
  "add %[a], %[a], #192\n add %[b], %[b], #512\n" advance "cmp %[b], %[end]\n b.ne 1b\n"

#define SX_ZERO4(a, b, c, d) \
  "movi v" #a ".4s, #0\n movi v" #b ".4s, #0\n movi v" #c ".4s, #0\n movi v" #d ".4s, #0\n"
#define SX_ZERO1 SX_ZERO4(8, 9, 10, 11) SX_ZERO4(12, 13, 14, 15)
#define SX_ZERO2 SX_ZERO1 SX_ZERO4(16, 17, 18, 19) SX_ZERO4(20, 21, 22, 23)
#define SX_ZERO3 SX_ZERO2 SX_ZERO4(24, 25, 26, 27) SX_ZERO4(28, 29, 30, 31)

// Eight accumulators to or from [8][4] floats at o0, o1, o2.
#define SX_PAIRS(op, at, a, b, c, d, e, f, g, h)                                                                  \
  op " q" #a ", q" #b ", [%[" at "]]\n" op " q" #c ", q" #d ", [%[" at "], #32]\n"                                  \
  op " q" #e ", q" #f ", [%[" at "], #64]\n" op " q" #g ", q" #h ", [%[" at "], #96]\n"
#define SX_MOVE1(op) SX_PAIRS(op, "o0", 8, 9, 10, 11, 12, 13, 14, 15)
#define SX_MOVE2(op) SX_MOVE1(op) SX_PAIRS(op, "o1", 16, 17, 18, 19, 20, 21, 22, 23)
#define SX_MOVE3(op) SX_MOVE2(op) SX_PAIRS(op, "o2", 24, 25, 26, 27, 28, 29, 30, 31)

// The maxima of a pair's eight accumulators, folded into its lanes of `top`.
#define SX_FMAX(d, a, b) "fmax v" #d ".4s, v" #a ".4s, v" #b ".4s\n"
#define SX_TOP(top, a, b, c, d, e, f, g, h)                                                            \
  SX_FMAX(a, a, b) SX_FMAX(c, c, d) SX_FMAX(e, e, f) SX_FMAX(g, g, h) SX_FMAX(a, a, c) SX_FMAX(e, e, g) \
  SX_FMAX(a, a, e) "ldr q0, [%[top], #" #top "]\n" SX_FMAX(a, a, 0) "str q" #a ", [%[top], #" #top "]\n"
#define SX_TOP1 SX_TOP(0, 8, 9, 10, 11, 12, 13, 14, 15)
#define SX_TOP2 SX_TOP1 SX_TOP(16, 16, 17, 18, 19, 20, 21, 22, 23)
#define SX_TOP3 SX_TOP2 SX_TOP(32, 24, 25, 26, 27, 28, 29, 30, 31)

#define SX_CLOBBERS                                                                                                    \
  "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",\
      "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

// A row of tiles: the same A against `tiles` consecutive B, into consecutive [8][4] of o.
struct Tiles {
  const uint16_t* a;
  const uint16_t* b;
  int steps;                // a multiple of 4
  int tiles;
  const uint16_t* next;     // as large as all of B; only read if kFetch
  float* o;                 // [pair][tiles][8][4], pairs `stride` floats apart
  int stride;
  float* top;               // [pair][4]
};

#define SX_TILES(P, fetch, advance, before, after)                                                                  \
  asm volatile("2:\n" before SX_LOOP(P, fetch, advance) after                                                       \
               "sub %[a], %[a], %[a_bytes]\n add %[o0], %[o0], #128\n add %[o1], %[o1], #128\n"                     \
               "add %[o2], %[o2], #128\n add %[end], %[end], %[b_bytes]\n subs %[tiles], %[tiles], #1\n b.ne 2b\n"  \
               : [a] "+r"(a), [b] "+r"(b), [next] "+r"(next), [end] "+r"(end), [o0] "+r"(o0), [o1] "+r"(o1),        \
                 [o2] "+r"(o2), [tiles] "+r"(tiles)                                                                 \
               : [top] "r"(t.top), [a_bytes] "r"(int64_t(t.steps) * 48), [b_bytes] "r"(int64_t(t.steps) * 128)       \
               : SX_CLOBBERS)
#define SX_ADVANCE "add %[next], %[next], #512\n"
#define SX_OPERANDS                                                                                   \
  const uint16_t *a = t.a, *b = t.b, *next = t.next, *end = t.b + t.steps * 64;                       \
  float *o0 = t.o, *o1 = t.o + t.stride, *o2 = t.o + 2 * t.stride;                                    \
  int64_t tiles = t.tiles;

// o = A B, top = max(top, o).
template <int P, bool kFetch> SX_KERNEL void multiply(const Tiles& t) {
  SX_OPERANDS
  if constexpr (P == 1 && kFetch) SX_TILES(1, SX_FETCH, SX_ADVANCE, SX_ZERO1, SX_MOVE1("stp") SX_TOP1);
  if constexpr (P == 2 && kFetch) SX_TILES(2, SX_FETCH, SX_ADVANCE, SX_ZERO2, SX_MOVE2("stp") SX_TOP2);
  if constexpr (P == 3 && kFetch) SX_TILES(3, SX_FETCH, SX_ADVANCE, SX_ZERO3, SX_MOVE3("stp") SX_TOP3);
  if constexpr (P == 1 && !kFetch) SX_TILES(1, SX_NO_FETCH, "", SX_ZERO1, SX_MOVE1("stp") SX_TOP1);
  if constexpr (P == 2 && !kFetch) SX_TILES(2, SX_NO_FETCH, "", SX_ZERO2, SX_MOVE2("stp") SX_TOP2);
  if constexpr (P == 3 && !kFetch) SX_TILES(3, SX_NO_FETCH, "", SX_ZERO3, SX_MOVE3("stp") SX_TOP3);
}

// o += A B.
template <int P, bool kFetch> SX_KERNEL void multiply_add(const Tiles& t) {
  SX_OPERANDS
  if constexpr (P == 1 && kFetch) SX_TILES(1, SX_FETCH, SX_ADVANCE, SX_MOVE1("ldp"), SX_MOVE1("stp"));
  if constexpr (P == 2 && kFetch) SX_TILES(2, SX_FETCH, SX_ADVANCE, SX_MOVE2("ldp"), SX_MOVE2("stp"));
  if constexpr (P == 3 && kFetch) SX_TILES(3, SX_FETCH, SX_ADVANCE, SX_MOVE3("ldp"), SX_MOVE3("stp"));
  if constexpr (P == 1 && !kFetch) SX_TILES(1, SX_NO_FETCH, "", SX_MOVE1("ldp"), SX_MOVE1("stp"));
  if constexpr (P == 2 && !kFetch) SX_TILES(2, SX_NO_FETCH, "", SX_MOVE2("ldp"), SX_MOVE2("stp"));
  if constexpr (P == 3 && !kFetch) SX_TILES(3, SX_NO_FETCH, "", SX_MOVE3("ldp"), SX_MOVE3("stp"));
}
// clang-format on
